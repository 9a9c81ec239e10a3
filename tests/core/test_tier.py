"""The tiers against a small machine that really moves contents: an executor, an arena and a disk, in any order."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_proof import next_proof, root_proof
from asyncpage.core.tier import MOST_RESCUES, MOST_SAVES, Tier
from asyncpage.messages import (
    BlockLabel,
    Discard,
    Fetch,
    Fetched,
    LayerGroup,
    Prefix,
    RequestId,
    Shelved,
    Store,
    Stored,
    Touch,
)

SIZE = 2
FULL = (LayerGroup("full", 0, 1),)
ROOT = root_key(SIZE)


def tokens_of(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def prefix_of(*values: int) -> Prefix:
    return Prefix(ROOT, tokens_of(*values), chain_names(tokens_of(*values), SIZE))


def labels_of(prefix: Prefix, group: int = 0) -> list[BlockLabel]:
    """By the definition of names and proofs."""
    labels, parent, proof = [], bytes(32), root_proof(prefix.root)
    for index, name in enumerate(prefix.names):
        tokens = prefix.tokens[4 * SIZE * index : 4 * SIZE * (index + 1)]
        proof = next_proof(proof, tokens)
        labels.append(BlockLabel(name, group, parent, tokens, proof))
        parent = name
    return labels


def reach(
    tier: Tier, prefix: Prefix, first: int = 0, request: int = 1, most: int = 99
) -> list[list[BlockLabel]] | None:
    proof = labels_of(prefix)[first - 1].proof if first else root_proof(prefix.root)
    run = tier.reach(RequestId(request), prefix, first, proof, most)
    return None if run is None else [list(labels) for labels in run.labels]


def hold(tier: Tier, labels: list[BlockLabel], number: int = 1, blocks: int = 100) -> None:
    """Blocks with these labels, freed by their last holder and saved by steps that have returned."""
    for index, label in enumerate(labels):
        tier.name(blocks + index, label)
        tier.freed(blocks + index)
    while tier.can_save:
        tier.saves(number)
    tier.returned(number)


# --- cases ----------------------------------------------------------------------------------------------------------


def test_what_was_saved_is_found_behind_a_match_as_far_as_it_goes() -> None:
    prefix = prefix_of(*range(10))
    labels = labels_of(prefix)
    tier = Tier(9, FULL, SIZE, has_files=False)
    hold(tier, labels[:4])
    assert reach(tier, prefix) == [[label] for label in labels[:4]]
    assert reach(tier, prefix, first=1, most=3) == [[label] for label in labels[1:3]]
    assert reach(tier, prefix, first=4) == []
    assert reach(tier, prefix_of(0, 1, 2, 9, 4, 5), first=1) == []


def test_a_step_saves_few_and_rescues_what_it_takes() -> None:
    tier = Tier(200, FULL, SIZE, has_files=False)
    labels = labels_of(prefix_of(*range(200)))
    for block, label in enumerate(labels, start=1):
        tier.name(block, label)
        tier.freed(block)
    for block in range(60, 100):
        tier.evicted(block)
    saves = tier.saves(1)
    assert [block for block, _ in saves] == list(range(60, 60 + MOST_RESCUES))
    assert len({slot for _, slot in saves}) == MOST_RESCUES
    assert [block for block, _ in tier.saves(2)] == list(range(1, 1 + MOST_SAVES))


def test_a_slot_is_not_given_away_while_a_step_or_the_archive_uses_it() -> None:
    tier = Tier(2, FULL, SIZE, has_files=True)
    first, second, third, fourth = labels_of(prefix_of(*range(8)))
    for block, label in enumerate((first, second, third, fourth), start=1):
        tier.name(block, label)
        tier.freed(block)
    assert tier.saves(1) == [(1, 0), (2, 1)]
    assert not tier.can_save
    assert tier.saves(2) == []
    tier.returned(1)
    assert tier.files.work() == [Store(0, first), Store(1, second)]
    assert not tier.can_save
    tier.files.stored(Stored(1, is_stored=True))
    assert tier.saves(3) == [(3, 1)]
    assert tier.files.label(second.key) == second
    tier.files.stored(Stored(0, is_stored=False))
    assert tier.files.label(first.key) is None
    # The first one's slot is loaded from in a step that is out.
    run = tier.reach(RequestId(1), prefix_of(0, 1), 0, root_proof(ROOT), 1)
    assert run is not None
    assert tier.load(4, RequestId(1), run, [[7]]) == [(0, 7)]
    assert tier.saves(4) == []
    tier.returned(4)
    assert tier.saves(5) == [(4, 0)]


def test_a_collision_of_names_serves_nobody_elses_block() -> None:
    """A block under the very name of the prompt's, after another beginning or with other tokens."""
    prefix = prefix_of(1, 2, 3, 4)
    first, second = labels_of(prefix)
    stranger = labels_of(prefix_of(5, 6, 3, 4))[1]
    for label in (
        BlockLabel(second.name, 0, second.parent, second.tokens, stranger.proof),
        BlockLabel(second.name, 0, second.parent, stranger.tokens, next_proof(first.proof, tokens_of(3, 5))),
    ):
        for has_files in (False, True):
            tier = Tier(4, FULL, SIZE, has_files=has_files)
            if has_files:
                tier.files.shelved(Shelved((label,)))
            else:
                hold(tier, [label])
            assert reach(tier, prefix, first=1) == []
            assert tier.files.work() == []


def test_a_salt_keeps_tenants_apart_also_where_names_collide() -> None:
    prefix = prefix_of(1, 2)
    tier = Tier(4, FULL, SIZE, has_files=False)
    hold(tier, labels_of(prefix))
    other = root_key(SIZE, salt="other")
    assert tier.reach(RequestId(1), Prefix(other, prefix.tokens, prefix.names), 0, root_proof(other), 9) is not None
    assert len(tier.reach(RequestId(1), Prefix(other, prefix.tokens, prefix.names), 0, root_proof(other), 9) or ()) == 0


def test_a_request_waits_for_its_files_and_is_woken_once() -> None:
    prefix = prefix_of(*range(8))
    labels = labels_of(prefix)
    tier = Tier(9, FULL, SIZE, has_files=True)
    tier.files.shelved(Shelved(tuple(labels[1:3])))
    hold(tier, labels[:1])
    tier.files.work()
    assert reach(tier, prefix, request=1) is None
    assert reach(tier, prefix, request=2) is None
    fetches = tier.files.work()
    assert [fetch.label for fetch in fetches if isinstance(fetch, Fetch)] == labels[1:3]
    tier.files.fetched(Fetched(fetches[0].slot, is_there=True))
    assert tier.files.woken() == ()
    tier.files.fetched(Fetched(fetches[1].slot, is_there=False))
    assert tier.files.woken() == (1, 2)
    assert tier.files.woken() == ()
    assert reach(tier, prefix, request=1) == [[labels[0]], [labels[1]]]
    assert tier.files.work() == []


def test_what_is_used_again_is_kept_longest_also_in_files() -> None:
    prefix = prefix_of(*range(8))
    labels = labels_of(prefix)
    tier = Tier(3, FULL, SIZE, has_files=True)
    hold(tier, labels[:3])
    for work in tier.files.work():
        tier.files.stored(Stored(work.slot, is_stored=True))
    run = tier.reach(RequestId(1), prefix, 0, root_proof(ROOT), 1)
    tier.load(2, RequestId(1), run, [[7]])
    assert Touch((labels[0].key,)) in tier.files.work()
    tier.files.stored(Stored(2, is_stored=True))
    tier.returned(2)
    hold(tier, labels[3:4], number=3, blocks=200)
    held = [label for label in labels if tier.reach(RequestId(9), prefix, 0, b"", 0) is not None and _lies(tier, label)]
    assert held == [labels[0], labels[2], labels[3]]


def _lies(tier: Tier, label: BlockLabel) -> bool:
    return tier._slots.place(label.key) is not None


def test_a_run_longer_than_the_host_is_fetched_as_far_as_it_fits_and_never_over_its_own_beginning() -> None:
    prefix = prefix_of(*range(20))
    labels = labels_of(prefix)
    tier = Tier(4, FULL, SIZE, has_files=True)
    tier.files.shelved(Shelved(tuple(labels)))
    assert reach(tier, prefix) is None
    work = tier.files.work()
    assert [fetch.label for fetch in work] == labels[:4]
    for fetch in work:
        tier.files.fetched(Fetched(fetch.slot, is_there=True))
    assert tier.files.woken() == (1,)
    assert reach(tier, prefix) == [[label] for label in labels[:4]]
    assert tier.files.work() == []


def test_a_request_does_not_wait_for_files_for_ever() -> None:
    """Whenever its block has come, another one's takes the only slot."""
    mine, other = prefix_of(1, 2), prefix_of(3, 4)
    tier = Tier(1, FULL, SIZE, has_files=True)
    tier.files.shelved(Shelved((*labels_of(mine), *labels_of(other))))
    rounds = 0
    while reach(tier, mine, request=1) is None:
        rounds += 1
        for prefix in (mine, other):
            if prefix is other:
                assert reach(tier, other, request=rounds + 10) is None
            (fetch,) = tier.files.work()
            tier.files.fetched(Fetched(fetch.slot, is_there=True))
    assert rounds == 2
    assert reach(tier, mine, request=1) == []


def test_a_lost_executor_leaves_what_had_been_saved_and_takes_what_was_under_way() -> None:
    prefix = prefix_of(*range(8))
    labels = labels_of(prefix)
    tier = Tier(9, FULL, SIZE, has_files=False)
    hold(tier, labels[:2])
    tier.name(5, labels[2])
    tier.freed(5)
    assert tier.saves(2) == [(5, 2)]
    assert tier.rewind(forget=True) == []
    assert reach(tier, prefix) == [[label] for label in labels[:2]]
    assert not tier.can_save


def test_after_a_failed_step_its_saves_are_made_again_and_its_loads_are_in_doubt() -> None:
    prefix = prefix_of(*range(8))
    labels = labels_of(prefix)
    tier = Tier(9, FULL, SIZE, has_files=False)
    hold(tier, labels[:2])
    tier.name(5, labels[2])
    tier.freed(5)
    assert tier.saves(2) == [(5, 2)]
    run = tier.reach(RequestId(1), prefix, 0, root_proof(ROOT), 2)
    assert run is not None
    tier.load(3, RequestId(1), run, [[7, 8]])
    for block, label in ((7, labels[0]), (8, labels[1])):
        tier.name(block, label)
    assert tier.rewind(forget=False) == [8, 7]
    assert tier.proof_of(7) is None
    assert reach(tier, prefix) == [[label] for label in labels[:2]]
    assert [block for block, _ in tier.saves(4)] == [5]


def test_windows_ask_only_for_what_the_next_token_sees() -> None:
    groups = (LayerGroup("full", 0, 1), LayerGroup("window", 3, 1))  # the next token sees two before it
    prefix = prefix_of(*range(12))
    full, window = labels_of(prefix), labels_of(prefix, group=1)
    tier = Tier(30, groups, SIZE, has_files=False)
    hold(tier, [*full[:5], window[2], window[4]])
    assert reach(tier, prefix) == [[label, None] for label in full[:4]] + [[full[4], window[4]]]
    assert reach(tier, prefix, most=4) == [[full[0], None], [full[1], None], [full[2], window[2]]]
    assert reach(tier, prefix, most=2) == []


def test_clearing_forgets_everything_and_wakes_who_waits() -> None:
    prefix = prefix_of(*range(12))
    labels = labels_of(prefix)
    tier = Tier(6, FULL, SIZE, has_files=True)
    tier.files.shelved(Shelved(tuple(labels[2:4])))
    hold(tier, labels[:2])
    stores = tier.files.work()
    assert reach(tier, prefix) is None
    fetches = tier.files.work()
    tier.name(5, labels[4])
    tier.freed(5)
    tier.clear()
    assert tier.files.woken() == (1,)
    assert tier.files.work() == [Discard()]
    assert (tier.slots_in_use, len(tier.files), tier.can_save) == (0, 0, False)
    # What the archive had in hand is answered late; its slots are free again then, and not before.
    assert tier._slots.room == 2
    for store in stores:
        tier.files.stored(Stored(store.slot, is_stored=True))
    for fetch in fetches:
        tier.files.fetched(Fetched(fetch.slot, is_there=True))
    assert tier._slots.room == 6
    assert (tier.slots_in_use, len(tier.files)) == (0, 0)
    assert reach(tier, prefix) == []


# --- any order ------------------------------------------------------------------------------------------------------

PROMPTS = [
    prefix_of(*values)
    for values in ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9, 9), (8, 8, 8, 8), (1, 2, 6, 6), (7, 7, 5, 5, 3, 3))
]
LABELS = {prompt.names: labels_of(prompt) for prompt in PROMPTS}
KEYS = {label.key for labels in LABELS.values() for label in labels}


@dataclass
class _Step:
    number: int
    saves: list[tuple[int, int]]
    loads: list[tuple[int, int]]
    writes: list[int]
    labels: list[BlockLabel]  # of everything that its row holds
    expected: dict[int, bytes] = field(default_factory=dict)  # what a loaded block must hold

    @property
    def written(self) -> list[BlockLabel]:
        return self.labels[len(self.labels) - len(self.writes) :]


class Machine(RuleBasedStateMachine):
    """A device of few blocks, an arena of few slots; contents are keys, and every copy is really made."""

    @initialize(slots=st.integers(1, 6), blocks=st.integers(5, 8), has_files=st.booleans())
    def build(self, slots: int, blocks: int, has_files: bool) -> None:
        self.tier = Tier(slots, FULL, SIZE, has_files=has_files)
        self.device: dict[int, bytes] = {}
        self.arena: list[Any] = [f"blank {slot}" for slot in range(slots)]
        self.disk: dict[bytes, Any] = {}
        self.number = 0
        self.blank = list(range(1, blocks))
        self.cached: OrderedDict[bytes, int] = OrderedDict()  # free blocks with a name, by key
        self.shared: dict[bytes, list[int]] = {}  # referenced: block, references
        self.sent: deque[_Step] = deque()  # not executed
        self.done: deque[_Step] = deque()  # executed, not returned
        self.work: deque[Any] = deque()
        self.parked: set[RequestId] = set()
        self.next_request = 1

    def _share(self, key: bytes) -> int | None:
        if key in self.cached:
            self.shared[key] = [self.cached.pop(key), 0]
        if key not in self.shared:
            return None
        self.shared[key][1] += 1
        return self.shared[key][0]

    def _drop(self, key: bytes) -> None:
        block, references = self.shared[key]
        self.shared[key][1] -= 1
        if references == 1:
            del self.shared[key]
            self.cached[key] = block
            self.tier.freed(block)

    def _take(self) -> int:
        if self.blank:
            return self.blank.pop()
        _, block = self.cached.popitem(last=False)
        self.tier.evicted(block)
        return block

    @rule(prompt=st.sampled_from(PROMPTS))
    def admit(self, prompt: Prefix) -> None:
        labels = LABELS[prompt.names]
        request = RequestId(self.next_request)
        self.next_request += 1
        first = 0
        while first < len(labels) and (labels[first].key in self.cached or labels[first].key in self.shared):
            first += 1
        proof = labels[first - 1].proof if first else root_proof(ROOT)
        run = self.tier.reach(request, prompt, first, proof, len(labels))
        self.work += self.tier.files.work()
        if run is None:
            self.parked.add(request)
            return
        free = len(self.blank) + sum(key not in {label.key for label in labels[:first]} for key in self.cached)
        if len(labels) - first > free:
            return
        self.number += 1
        for label in labels[:first]:
            self._share(label.key)
        fresh = [self._take() for _ in labels[first:]]
        loaded = fresh[: len(run)]
        loads = self.tier.load(self.number, request, run, [loaded])
        assert [block for _, block in loads] == loaded
        assert [row[0] for row in run.labels] == labels[first : first + len(run)]
        for block, label in zip(loaded, labels[first:], strict=False):
            self.tier.name(block, label)
            self.shared[label.key] = [block, 1]
        self._send(loads, fresh[len(run) :], labels)
        self.sent[-1].expected = {block: row[0].key for block, row in zip(loaded, run.labels, strict=True)}

    @rule()
    def save(self) -> None:
        self.number += 1
        self._send([], [], [])

    def _send(self, loads: list[Any], writes: list[int], labels: list[BlockLabel]) -> None:
        saves = self.tier.saves(self.number)
        assert len({slot for _, slot in saves}) == len(saves)
        self.sent.append(_Step(self.number, saves, loads, writes, labels))

    @precondition(lambda self: self.sent)
    @rule()
    def execute(self) -> None:
        step = self.sent.popleft()
        for block, slot in step.saves:
            self.arena[slot] = self.device[block]
        for slot, block in step.loads:
            self.device[block] = self.arena[slot]
            assert self.arena[slot] == step.expected[block]
        for block, label in zip(step.writes, step.written, strict=True):
            self.device[block] = label.key
        self.done.append(step)

    @precondition(lambda self: self.done)
    @rule()
    def give_back(self) -> None:
        """The oldest step is back: its request ends, its computed blocks are published and all are given up."""
        step = self.done.popleft()
        self.tier.returned(step.number)
        self.work += self.tier.files.work()
        for block, label in zip(step.writes, step.written, strict=True):
            if label.key in self.cached or label.key in self.shared:
                self.blank.append(block)
            else:
                self.tier.name(block, label)
                self.shared[label.key] = [block, 1]
        twins = {
            label.key
            for label, block in zip(step.written, step.writes, strict=True)
            if self.shared.get(label.key, [0])[0] != block
        }
        for label in reversed(step.labels):
            if label.key not in twins:
                self._drop(label.key)

    @precondition(lambda self: self.work)
    @rule(works=st.booleans(), removes=st.booleans())
    def archive(self, works: bool, removes: bool) -> None:
        match self.work.popleft():
            case Store(slot, label):
                assert self.arena[slot] == label.key
                removed = (next(iter(self.disk)),) if removes and self.disk else ()
                for key in removed:
                    del self.disk[key]
                if works:
                    self.disk[label.key] = self.arena[slot]
                self.tier.files.stored(Stored(slot, works, removed))
            case Fetch(label, slot):
                is_there = works and label.key in self.disk
                self.arena[slot] = self.disk[label.key] if is_there else "damaged"
                if not is_there:
                    self.disk.pop(label.key, None)
                self.tier.files.fetched(Fetched(slot, is_there))
            case Touch(keys):
                assert set(keys) <= KEYS
            case Discard():
                self.disk.clear()
        self.work += self.tier.files.work()
        self._wake()

    @rule(prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=6), files=st.integers(0, 9))
    def serve(self, prompts: list[Prefix], files: int) -> None:
        """All goes well for a while."""
        for prompt in prompts:
            self.admit(prompt)
            if self.sent:
                self.execute()
            if self.done:
                self.give_back()
            self.save()
        for _ in range(min(files, len(self.work))):
            self.archive(works=True, removes=False)

    @rule(luck=st.integers(0, 5), forget=st.booleans())
    def fail(self, luck: int, forget: bool) -> None:
        if luck == 3:
            self._fail(forget)

    def _fail(self, forget: bool) -> None:
        """Some of what was sent is done, the rest never will be; every row is gone."""
        if forget:
            self.device.clear()
        doubtful = self.tier.rewind(forget=forget)
        loaded = [block for step in (*self.done, *self.sent) for _, block in step.loads]
        assert sorted(doubtful) == ([] if forget else sorted(loaded))
        steps = (*self.done, *self.sent)
        self.done.clear()
        self.sent.clear()
        for step in steps:
            self.blank += step.writes
        for key, (block, _) in self.shared.items():
            self.cached[key] = block
            self.tier.freed(block)
        self.shared.clear()
        for key, block in list(self.cached.items()):
            if forget or block in doubtful:
                del self.cached[key]
                self.blank.append(block)

    @rule(luck=st.integers(0, 9))
    def clear(self, luck: int) -> None:
        if luck == 3:
            self._clear()

    def _clear(self) -> None:
        self.tier.clear()
        self.blank += self.cached.values()
        self.cached.clear()
        # Rows that run keep their blocks, which nobody finds any more.
        running = {step.number: step for step in (*self.done, *self.sent)}
        self.work += self.tier.files.work()
        self._wake()
        if running:
            self._fail(forget=False)

    def _wake(self) -> None:
        woken = self.tier.files.woken()
        assert len(set(woken)) == len(woken)
        assert set(woken) <= self.parked
        self.parked -= set(woken)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if hasattr(self, "work") and not any(isinstance(one, Fetch) for one in self.work):
            assert not self.parked

    @invariant()
    def slots_add_up(self) -> None:
        if hasattr(self, "tier"):
            slots = self.tier._slots
            pinned = sum(1 for pins in slots._pins if pins)
            assert slots.room + pinned == len(self.arena)
            assert self.tier.slots_in_use <= len(self.arena)

    def teardown(self) -> None:
        """Left alone, everything comes to rest, and what is said to be readable is what it is said to be."""
        if not hasattr(self, "tier"):
            return
        for _ in range(200):
            while self.sent:
                self.execute()
            while self.done:
                self.give_back()
            while self.work:
                self.archive(works=True, removes=False)
            if not self.tier.can_save:
                break
            self.save()
        else:
            raise AssertionError("still saving")
        assert not self.parked
        slots = self.tier._slots
        assert not any(slots._pins)
        for slot, label in enumerate(slots._labels):
            if label is not None:
                assert self.arena[slot] == label.key
        for key, contents in self.disk.items():
            assert contents == key
        for key, block in self.cached.items():
            assert self.device[block] == key


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
test_any_order_of_steps_files_and_failures_moves_true_contents = Machine.TestCase


@pytest.mark.parametrize("has_files", [False, True])
def test_a_block_that_lies_in_a_slot_is_not_saved_again(has_files: bool) -> None:
    tier = Tier(4, FULL, SIZE, has_files=has_files)
    (label,) = labels_of(prefix_of(1, 2))
    hold(tier, [label])
    tier.name(9, label)
    tier.freed(9)
    assert not tier.can_save
    assert tier.saves(5) == []
