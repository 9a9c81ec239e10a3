"""Both indexes against brute force: every published block in a plain dictionary, every question answered by a search.

The machine is a small engine: rows match, compute, publish, drop what is behind their windows and end; a pool takes
the longest unused block when it has no other. What an index says is compared after every move.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import Match, PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.messages import LayerGroup, Prefix

INDEXES = (PrefixChain, PrefixTree)
BLOCKS = 24
TOKENS = (0, 1, 256, 2**24 + 1)  # they differ in every byte, so a run may break off inside a token
ROOTS = tuple(root_key(4, salt=salt) for salt in ("", "a"))

Path = tuple[int, ...]


def int32(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def prefix_of(root: bytes, tokens: Sequence[int], size: int) -> Prefix:
    data = int32(tokens)
    return Prefix(root, data, extend_chain(root_name(root), data, size))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def full(layers: int = 1) -> LayerGroup:
    return LayerGroup("full", 0, layers)


def window(tokens: int) -> LayerGroup:
    return LayerGroup("window", tokens, 1)


# --- brute force ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Block:
    """One published block, full or not. `path`: every token from the root to its end."""

    root: bytes
    path: Path
    ids: list[int]
    before: Block | None = None  # of one that was empty from the start and that nothing hangs on
    is_found: bool = True

    @property
    def is_alive(self) -> bool:
        """Whether anything can be published behind it."""
        return self.is_found or (self.before is not None and self.before.is_alive)

    def hangs_on(self, other: Block) -> bool:
        return self.root == other.root and self.path[: len(other.path)] == other.path


@dataclass(eq=False)
class Oracle:
    """A block that is forgotten takes what hangs on it out of reach only until it is there again."""

    groups: tuple[LayerGroup, ...]
    size: int
    full: dict[tuple[bytes, Path], Block] = field(default_factory=dict)
    tails: list[Block] = field(default_factory=list)
    held: dict[int, Block] = field(default_factory=dict)

    def found(self) -> list[Block]:
        return [*self.full.values(), *self.tails]

    def needed(self, group: int, length: int) -> range:
        """Indices of blocks that the token behind `length` full blocks looks at."""
        spec = self.groups[group]
        if spec.kind == "full":
            return range(length)
        seen = {p // self.size for p in range(max(0, length * self.size - spec.window + 1), length * self.size)}
        return range(min(seen, default=length), length)

    def is_served(self, root: bytes, path: Path, length: int) -> bool:
        blocks = [self.full.get((root, path[: (i + 1) * self.size])) for i in range(length)]
        return all(
            (block := blocks[i]) is not None and block.ids[group] != 0
            for group in range(len(self.groups))
            for i in self.needed(group, length)
        )

    def longest(self, root: bytes, path: Path, most: int) -> int:
        return max(n for n in range(min(most, len(path)) // self.size + 1) if self.is_served(root, path, n))

    def expected(self, root: bytes, path: Path, length: int) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(
                self.full[root, path[: (i + 1) * self.size]].ids[group] if i in self.needed(group, length) else 0
                for i in range(length)
            )
            for group in range(len(self.groups))
        )

    def behind(self, root: bytes, path: Path, length: int) -> list[Block]:
        """Blocks, full or not, that directly follow the first `length` blocks of a path."""
        begin, end = length * self.size, (length + 1) * self.size
        return [
            b for b in self.found() if b.root == root and begin < len(b.path) <= end and b.path[:begin] == path[:begin]
        ]

    def publish(self, before: Block, path: Path, ids: Sequence[int]) -> Block:
        if not any(ids):
            return Block(before.root, path, [0] * len(ids), before, is_found=False)
        self.plant(before)
        block = self.full.setdefault((before.root, path), Block(before.root, path, [0] * len(ids)))
        for group, one in enumerate(ids):
            if one and not block.ids[group]:
                block.ids[group] = one
                self.held[one] = block
        return block

    def publish_tail(self, before: Block, path: Path, ids: Sequence[int]) -> None:
        self.plant(before)
        tail = Block(before.root, path, list(ids))
        self.tails.append(tail)
        self.held.update(dict.fromkeys(ids, tail))

    def plant(self, block: Block) -> None:
        """Something hangs on it now, so it is there, though it was empty from the start."""
        while not block.is_found and (block.root, block.path) not in self.full and block.before is not None:
            self.full[block.root, block.path] = block
            block.is_found = True
            block.before, block = None, block.before

    def forget(self, one: int) -> None:
        block = self.held.pop(one, None)
        if block is None:
            return
        block.ids[block.ids.index(one)] = 0
        if any(block.ids):
            return
        # An empty one stays as long as something hangs on it.
        lost = [b for b in self.found() if not any(any(o.ids) for o in self.found() if o.hangs_on(b))]
        for b in lost if block.is_found else ():
            b.is_found = False
        self.full = {key: b for key, b in self.full.items() if b.is_found}
        self.tails = [b for b in self.tails if b.is_found and any(b.ids)]

    def clear(self) -> None:
        for block in self.found():
            block.is_found = False
        self.full.clear()
        self.tails.clear()
        self.held.clear()


class Recorder:
    """What a listener that only hears can know of an index."""

    def __init__(self) -> None:
        self.names: set[bytes] = set()

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None:
        assert name not in self.names
        assert name == hashlib.sha256(parent + tokens).digest()
        self.names.add(name)

    def removed(self, name: bytes) -> None:
        self.names.remove(name)

    def cleared(self) -> None:
        self.names.clear()


# --- a small engine ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Row:
    root: bytes
    tokens: list[int]
    blocks: list[list[int]]  # a group's, 0 where dropped
    branch: Any
    last: Block  # the oracle's for `branch`
    published: int


class IndexMachine(RuleBasedStateMachine):
    index_class: type[PrefixIndex]

    @initialize(
        size=st.integers(1, 5),
        windows=st.sampled_from([(None,), (None,), (None, 1), (None, 3), (None, 6), (4,), (9,), (2, 7)]),
        is_orderly=st.booleans(),
    )
    def build(self, size: int, windows: tuple[int | None, ...], is_orderly: bool) -> None:
        self.size = size
        self.groups = tuple(full() if w is None else window(w) for w in windows)
        self.is_orderly = is_orderly
        self.is_full = all(group.kind == "full" for group in self.groups)
        self.index = self.index_class(self.groups, size)
        self.index.listener = self.recorder = Recorder()
        self.oracle = Oracle(self.groups, size)
        self.references = dict.fromkeys(range(1, BLOCKS + 1), 0)
        self.blank = list(range(1, BLOCKS + 1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.rows: list[Row] = []
        self.seen: list[Path] = [()]

    # the pool

    def take(self, count: int) -> list[int]:
        while len(self.blank) < count:
            self.evict(next(iter(self.cached)))
        taken = [self.blank.pop() for _ in range(count)]
        self.references.update(dict.fromkeys(taken, 1))
        return taken

    def evict(self, block: int) -> None:
        del self.cached[block]
        self.index.forget(block)
        self.oracle.forget(block)
        self.blank.append(block)

    def share(self, blocks: Sequence[int]) -> None:
        for block in filter(None, blocks):
            self.references[block] += 1
            self.cached.pop(block, None)

    def drop(self, blocks: Sequence[int]) -> None:
        for block in filter(None, blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                if self.index.holds(block):
                    self.cached[block] = None
                else:
                    self.blank.append(block)

    # the rows

    def draw_path(self, data: st.DataObject) -> Path:
        begun = data.draw(st.sampled_from(self.seen))
        kept = begun[: data.draw(st.integers(0, len(begun)))]
        more = data.draw(st.lists(st.sampled_from(TOKENS[:3] if self.size > 2 else TOKENS), min_size=1, max_size=8))
        return (*kept, *more)[:24]

    @rule(data=st.data(), root=st.sampled_from(ROOTS), is_late=st.booleans())
    def admit(self, data: st.DataObject, root: bytes, is_late: bool) -> None:
        path = self.draw_path(data)
        match = self.check_match(root, path, len(path) - 1)
        length = len(match.blocks[0])
        for blocks in match.blocks:
            self.share(blocks)
        fresh = -(-len(path) // self.size) - length
        if fresh * len(self.groups) > len(self.blank) + len(self.cached):
            for blocks in match.blocks:
                self.drop(blocks[::-1])
            return
        before = self.oracle.full.get((root, path[: length * self.size]), Block(root, (), []))
        blocks = [[*ids, *self.take(fresh)] for ids in match.blocks]
        row = Row(root, list(path), blocks, match.branch, before, length)
        self.rows.append(row)
        self.seen.append(path)
        self.compute(row, is_late)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), more=st.lists(st.sampled_from(TOKENS[:2]), min_size=1, max_size=6), is_late=st.booleans())
    def decode(self, data: st.DataObject, more: list[int], is_late: bool) -> None:
        row = data.draw(st.sampled_from(self.rows))
        fresh = -(-(len(row.tokens) + len(more)) // self.size) - len(row.blocks[0])
        if fresh * len(self.groups) > len(self.blank) + len(self.cached):
            return
        for blocks in row.blocks:
            blocks += self.take(fresh)
        row.tokens += more
        self.seen.append(tuple(row.tokens))
        self.compute(row, is_late)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), has_tail=st.booleans())
    def end(self, data: st.DataObject, has_tail: bool) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        at = row.published * self.size
        tail = tuple(row.tokens[at:])
        if has_tail and row.branch is not None and 0 < len(tail) < self.size:
            ids = [blocks[row.published] for blocks in row.blocks]
            path = tuple(row.tokens)
            was_covered = any(
                all(b.ids) and common(b.path[at:], tail) == len(tail)
                for b in self.oracle.behind(row.root, path, row.published)
            )
            self.index.publish_tail(row.branch, int32(tail), ids)
            if self.index.holds(ids[0]):
                assert row.last.is_alive
                self.oracle.publish_tail(row.last, path, ids)
            else:
                assert was_covered or not row.last.is_alive
        for index in reversed(range(len(row.blocks[0]))):
            self.drop([blocks[index] for blocks in row.blocks])

    def compute(self, row: Row, is_late: bool) -> None:
        """Name what is full, before or after the blocks behind the window are dropped."""
        if is_late:
            self.drop_behind(row)
        for index in range(row.published, len(row.tokens) // self.size):
            if row.branch is None:
                return
            path = tuple(row.tokens[: (index + 1) * self.size])
            name = extend_chain(root_name(row.root), int32(path), self.size)[-1]
            ids = [blocks[index] for blocks in row.blocks]
            is_alive = row.last.is_alive
            row.branch = self.index.publish(row.branch, name, int32(path[-self.size :]), ids)
            row.published = index + 1
            if any(ids):
                assert (row.branch is not None) == is_alive
            if row.branch is not None:
                row.last = self.oracle.publish(row.last, path, ids)
        self.drop_behind(row)

    def drop_behind(self, row: Row) -> None:
        for spec, blocks in zip(self.groups, row.blocks, strict=True):
            for index in range(min(len(blocks), spec.first_needed(len(row.tokens), self.size))):
                self.drop([blocks[index]])
                blocks[index] = 0

    # what may happen to the index at any time

    @precondition(lambda self: not self.is_orderly and self.cached)
    @rule(data=st.data())
    def evict_any(self, data: st.DataObject) -> None:
        self.evict(data.draw(st.sampled_from(list(self.cached))))

    @precondition(lambda self: self.cached)
    @rule(count=st.integers(1, 6))
    def evict_oldest(self, count: int) -> None:
        for block in list(self.cached)[:count]:
            self.evict(block)

    @precondition(lambda self: len(self.index) > BLOCKS // 2)
    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.oracle.clear()
        self.blank += self.cached
        self.cached.clear()

    @rule(data=st.data(), root=st.sampled_from(ROOTS))
    def look(self, data: st.DataObject, root: bytes) -> None:
        path = self.draw_path(data)
        self.check_match(root, path, data.draw(st.integers(0, len(path))))
        self.check_explanation(root, path)

    # what an index says

    def check_match(self, root: bytes, path: Path, most: int) -> Match:
        match = self.index.match(prefix_of(root, path, self.size), most)
        length = self.oracle.longest(root, path, most)
        assert match.blocks == self.oracle.expected(root, path, length)
        at = length * self.size
        assert (match.tail > 0) == bool(match.donors)
        if match.donors:
            donor = self.oracle.held[match.donors[0]]
            assert tuple(donor.ids) == match.donors
            assert donor.root == root
            assert donor.path[: at + match.tail] == path[: at + match.tail]
            assert at + match.tail <= most
        near = self.oracle.behind(root, path, length)
        best = max((common(b.path[at:], path[at:most]) for b in near if all(b.ids)), default=0)
        if all(all(b.ids) for b in near):
            assert match.tail == best
        assert match.tail <= best
        return match

    def check_explanation(self, root: bytes, path: Path) -> None:
        prefix = prefix_of(root, path, self.size)
        match = self.index.match(prefix, len(path))
        told = self.index.explain(prefix, match)
        shorter = self.index.match(prefix, max(0, len(path) - 1))
        assert self.index.explain(prefix, shorter) == told
        matched = len(match.blocks[0]) * self.size + match.tail
        assert told.matched == matched
        if told.position >= 0:
            assert told.position >= matched
            assert told.expected == path[told.position] != told.found
            branch = (*path[: told.position], told.found)
            assert any(b.root == root and b.path[: len(branch)] == branch for b in self.oracle.found())
        else:
            assert told.expected == told.found == -1
        if self.is_full and all(any(b.ids) for b in self.oracle.found()):
            continued = {b.path[matched] for b in self.oracle.found() if self.goes_on(b, root, path[:matched])}
            assert (told.position >= 0) == (matched < len(path) and bool(continued))
            elsewhere = max(self.oracle.longest(other, path, len(path)) for other in ROOTS if other != root)
            assert told.elsewhere == (elsewhere * self.size if elsewhere * self.size > matched else 0)

    def goes_on(self, block: Block, root: bytes, path: Path) -> bool:
        return block.root == root and len(block.path) > len(path) and block.path[: len(path)] == path

    @invariant()
    def holds_what_was_published_and_not_forgotten(self) -> None:
        if hasattr(self, "index"):
            assert len(self.index) == len(self.oracle.held)
            assert {b for b in range(BLOCKS + 1) if self.index.holds(b)} == set(self.oracle.held)

    @invariant()
    def events_add_up_to_what_a_match_can_name(self) -> None:
        if hasattr(self, "index"):
            named = [b for b in self.oracle.full.values() if any(b.ids)]
            names = {extend_chain(root_name(b.root), int32(b.path), self.size)[-1] for b in named}
            assert self.recorder.names == names
            assert self.index.held([*names, b"unknown"]) == names
            assert self.index.held([b"unknown"]) == set()


class ChainMachine(IndexMachine):
    index_class = PrefixChain


class TreeMachine(IndexMachine):
    index_class = PrefixTree


for _machine in (ChainMachine, TreeMachine):
    _machine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestChainAgainstBruteForce = ChainMachine.TestCase
TestTreeAgainstBruteForce = TreeMachine.TestCase


# --- names that lie, and tokens under other numbers -------------------------------------------------------------------


def weak_names(root: bytes, data: bytes, size: int) -> tuple[bytes, ...]:
    """A chain of digests with two bits, so that they collide all the time."""
    name, names = root, []
    for start in range(0, len(data) - 4 * size + 1, 4 * size):
        name = bytes([hashlib.sha256(name + data[start : start + 4 * size]).digest()[0] & 3])
        names.append(name)
    return tuple(names)


class Shelf:
    """Prompts come one after the other, with any names; beyond `most` blocks the oldest is forgotten."""

    def __init__(self, index_class: type[PrefixIndex], size: int, most: int) -> None:
        self.index = index_class((full(),), size)
        self.size = size
        self.most = most
        self.next_block = 1
        self.paths: OrderedDict[int, tuple[bytes, bytes]] = (
            OrderedDict()
        )  # what each block holds, and everything before

    def serve(self, prefix: Prefix) -> Match:
        width, tokens = 4 * self.size, prefix.tokens
        match = self.index.match(prefix, len(tokens) // 4)
        for block in (*match.blocks[0], *match.donors):
            self.paths.move_to_end(block)
        branch = match.branch
        for index in range(len(match.blocks[0]), len(tokens) // width):
            end = width * (index + 1)
            branch = self.index.publish(branch, prefix.names[index], tokens[end - width : end], [self.next_block])
            self.keep(prefix.root, tokens[:end])
            if branch is None:
                return match
        if len(tokens) % width:
            self.index.publish_tail(branch, tokens[len(tokens) // width * width :], [self.next_block])
            self.keep(prefix.root, tokens)
        return match

    def keep(self, root: bytes, tokens: bytes) -> None:
        if self.index.holds(self.next_block):
            self.paths[self.next_block] = (root, tokens)
        self.next_block += 1
        while len(self.paths) > self.most:
            self.index.forget(self.paths.popitem(last=False)[0])


paths = st.lists(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=10), min_size=1, max_size=12)


@pytest.mark.parametrize("index_class", INDEXES)
@given(paths, st.integers(1, 3), st.sampled_from([8, 100]))
def test_whatever_collides_nobody_sees_a_block_of_other_tokens(
    index_class: type[PrefixIndex], prompts: list[list[int]], size: int, most: int
) -> None:
    shelf = Shelf(index_class, size, most)
    for number, prompt in enumerate(prompts):
        root, data = ROOTS[number % 2], int32(prompt)
        held = dict(shelf.paths)
        match = shelf.serve(Prefix(root, data, weak_names(root, data, size)))
        for index, block in enumerate(match.blocks[0]):
            assert held[block] == (root, data[: 4 * size * (index + 1)])
        end = 4 * (size * len(match.blocks[0]) + match.tail)
        for donor in match.donors:
            assert held[donor][0] == root
            assert held[donor][1][:end] == data[:end]


@pytest.mark.parametrize("index_class", INDEXES)
@given(paths, st.integers(2, 3), st.permutations([5, 2**31 - 1, 2**16, 70_000]))
def test_what_is_found_depends_on_which_tokens_are_equal_and_not_on_their_numbers(
    index_class: type[PrefixIndex], prompts: list[list[int]], size: int, others: list[int]
) -> None:
    renamed = dict(zip(TOKENS, others, strict=True))
    one, other = Shelf(index_class, size, 10), Shelf(index_class, size, 10)
    for prompt in prompts:
        a = one.serve(prefix_of(ROOTS[0], prompt, size))
        b = other.serve(prefix_of(ROOTS[0], [renamed[token] for token in prompt], size))
        assert (a.blocks, a.donors, a.tail) == (b.blocks, b.donors, b.tail)


# --- told by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_class", INDEXES)
def test_a_prompt_that_leaves_a_block_in_the_middle_copies_what_comes_before(index_class: type[PrefixIndex]) -> None:
    shelf = Shelf(index_class, 4, 100)
    shelf.serve(prefix_of(ROOTS[0], range(10), 4))  # blocks 1, 2 and a tail of 2 tokens in 3
    for prompt, blocks, donors, tail in (
        ((0, 1, 2, 3, 4, 5, 6, 99), (1,), (2,), 3),
        ((0, 1, 2, 99), (), (1,), 3),
        ((*range(9), 99), (1, 2), (3,), 1),
        ((*range(10), 99), (1, 2), (3,), 2),
        ((99, *range(10)), (), (), 0),
    ):
        match = shelf.index.match(prefix_of(ROOTS[0], prompt, 4), len(prompt))
        assert (match.blocks, match.donors, match.tail) == ((blocks,), donors, tail)
    match = shelf.index.match(prefix_of(ROOTS[0], range(10), 4), 7)
    assert (match.blocks, match.donors, match.tail) == (((1,),), (2,), 3)
    assert shelf.index.match(prefix_of(ROOTS[1], range(10), 4), 10).blocks == ((),)


@pytest.mark.parametrize("index_class", INDEXES)
def test_forgetting_what_others_hang_on_is_safe_and_what_hangs_there_is_held_until_it_is_forgotten(
    index_class: type[PrefixIndex],
) -> None:
    shelf = Shelf(index_class, 4, 100)
    wanted = prefix_of(ROOTS[0], range(12), 4)
    shelf.serve(wanted)
    shelf.index.forget(2)
    assert shelf.index.match(wanted, 12).blocks == ((1,),)
    assert [shelf.index.holds(block) for block in (1, 2, 3)] == [True, False, True]
    shelf.index.forget(3)
    shelf.index.forget(1)
    assert len(shelf.index) == 0
    assert shelf.index.match(wanted, 12).blocks == ((),)


@pytest.mark.parametrize("index_class", INDEXES)
def test_nothing_is_published_behind_a_block_that_was_forgotten(index_class: type[PrefixIndex]) -> None:
    index = index_class((full(),), 2)
    wanted = prefix_of(ROOTS[0], range(4), 2)
    branch = index.publish(index.begin(ROOTS[0]), wanted.names[0], int32((0, 1)), [1])
    index.forget(1)
    assert index.publish(branch, wanted.names[1], int32((2, 3)), [2]) is None
    index.publish_tail(branch, int32((2,)), [3])
    assert len(index) == 0
    first = index.publish(index.begin(ROOTS[0]), wanted.names[0], int32((0, 1)), [4])
    assert index.publish(branch, wanted.names[1], int32((2, 3)), [2]) is None  # an equal one is another one
    assert index.publish(first, wanted.names[1], int32((2, 3)), [2]) is not None
    index.clear()
    assert index.publish(first, wanted.names[1], int32((2, 3)), [5]) is None
    assert index.match(wanted, 4).blocks == ((),)


def test_the_tree_serves_a_window_whose_beginning_was_evicted() -> None:
    index = PrefixTree((window(4),), 2)
    wanted = prefix_of(ROOTS[0], range(8), 2)
    branch = index.begin(ROOTS[0])
    for number, name in enumerate(wanted.names):
        branch = index.publish(branch, name, int32((2 * number, 2 * number + 1)), [number + 1])
    index.forget(1)
    index.forget(2)
    assert index.match(wanted, 8).blocks == ((0, 0, 3, 4),)


def test_a_shared_prompt_that_many_leave_and_are_forgotten_is_one_edge_again() -> None:
    tree = PrefixTree((full(),), 4)
    shelf = Shelf(PrefixTree, 4, 10_000)
    shelf.index = tree
    wanted = prefix_of(ROOTS[0], range(400), 4)
    shelf.serve(wanted)
    own = shelf.next_block
    for at in range(1, 400):
        shelf.serve(prefix_of(ROOTS[0], (*range(at), 1000, 1001, 1002, 1003), 4))
    for block in reversed(range(own, shelf.next_block)):
        tree.forget(block)
    assert tree.match(wanted, 400).blocks == (tuple(range(1, 101)),)
    assert len(tree) == 100
    (root,) = tree._tree.roots.values()
    (edge,) = root.children.values()
    assert (len(edge.run), edge.children) == (1600, {})


# --- blocks that a row has dropped before it names them ---------------------------------------------------------------


def names_of(tokens: Sequence[int], size: int) -> tuple[bytes, ...]:
    return prefix_of(ROOTS[0], tokens, size).names


@pytest.mark.parametrize("index_class", INDEXES)
def test_dropped_blocks_that_nothing_came_behind_are_in_nobodys_way(index_class: type[PrefixIndex]) -> None:
    index, size = index_class((window(1),), 2), 2
    branch = index.begin(ROOTS[0])
    for name, tokens in zip(names_of([5, 6, 7, 8], size), ([5, 6], [7, 8]), strict=True):
        followed = index.publish(branch, name, int32(tokens), [0])
        assert followed is not None
        branch = followed
    other = names_of([5, 9], size)[0]
    index.publish(index.begin(ROOTS[0]), other, int32([5, 9]), [3])
    match = index.match(prefix_of(ROOTS[0], [5, 6], size), 2)
    assert (match.blocks, match.donors, match.tail) == (((),), (3,), 1)


@pytest.mark.parametrize("index_class", INDEXES)
def test_a_row_goes_on_behind_a_dropped_block_when_its_namesake_is_forgotten(index_class: type[PrefixIndex]) -> None:
    index, size = index_class((window(2),), 2), 2
    first, second = names_of([5, 6, 7, 8], size)
    held = index.publish(index.begin(ROOTS[0]), first, int32([5, 6]), [1])
    assert held is not None
    index.publish_tail(held, int32([7]), [2])  # keeps the block before it in its place
    index.forget(1)
    branch = index.publish(index.begin(ROOTS[0]), first, int32([5, 6]), [0])
    assert branch is not None
    index.forget(2)
    assert index.publish(branch, second, int32([7, 8]), [3]) is not None
    assert index.match(prefix_of(ROOTS[0], [5, 6, 7, 8], size), 4).blocks == ((0, 3),)
