"""Hits of waiting requests against walking every request's names from the front each time."""

from __future__ import annotations

import hashlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.watch import HitWatch
from asyncpage.messages import LayerGroup, Prefix, RequestId

ROOT = b"root"


def name_of(path: tuple[int, ...]) -> bytes:
    """A chain name: the digest of everything up to here."""
    return hashlib.sha256(bytes(path)).digest() if path else ROOT


def names_of(path: tuple[int, ...]) -> tuple[bytes, ...]:
    return tuple(name_of(path[:length]) for length in range(1, len(path) + 1))


class ToyIndex:
    """Names that are held, told to a listener; any may be removed, also in the middle of a branch."""

    def __init__(self, listener: HitWatch) -> None:
        self.listener = listener
        self.held: set[tuple[int, ...]] = set()

    def store(self, path: tuple[int, ...]) -> None:
        if path not in self.held:
            self.held.add(path)
            self.listener.stored(name_of(path), name_of(path[:-1]), bytes(path[-1:]))

    def remove(self, path: tuple[int, ...]) -> None:
        self.held.remove(path)
        self.listener.removed(name_of(path))

    def clear(self) -> None:
        self.held.clear()
        self.listener.cleared()

    def hits(self, path: tuple[int, ...]) -> int:
        return next((i for i in range(len(path)) if path[: i + 1] not in self.held), len(path))


PATHS = st.lists(st.integers(0, 2), min_size=0, max_size=6).map(tuple)


class WatchMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.watch = HitWatch()
        self.index = ToyIndex(self.watch)
        self.paths: dict[RequestId, tuple[int, ...]] = {}
        self.told: dict[RequestId, int] = {}

    @rule(request=st.integers(0, 9), path=PATHS)
    def wait(self, request: int, path: tuple[int, ...]) -> None:
        self.watch.watch(RequestId(request), names_of(path))
        self.paths[RequestId(request)] = path
        self.told[RequestId(request)] = 0

    @rule(request=st.integers(0, 9))
    def leave(self, request: int) -> None:
        self.watch.unwatch(RequestId(request))
        self.paths.pop(RequestId(request), None)

    @rule(path=PATHS)
    def store_a_branch(self, path: tuple[int, ...]) -> None:
        for length in range(1, len(path) + 1):
            self.index.store(path[:length])

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def store_what_somebody_waits_for(self, data: st.DataObject) -> None:
        path = self.paths[data.draw(st.sampled_from(sorted(self.paths)))]
        for length in range(1, data.draw(st.integers(0, len(path))) + 1):
            self.index.store(path[:length])

    @precondition(lambda self: self.index.held)
    @rule(data=st.data(), count=st.integers(1, 4))
    def remove_leaves(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.index.held))):
            held = self.index.held
            leaves = [path for path in held if not any(other[: len(path)] == path != other for other in held)]
            self.index.remove(data.draw(st.sampled_from(sorted(leaves))))

    @precondition(lambda self: self.index.held)
    @rule(data=st.data())
    def remove_in_the_middle(self, data: st.DataObject) -> None:
        self.index.remove(data.draw(st.sampled_from(sorted(self.index.held))))

    @rule()
    def clear(self) -> None:
        self.index.clear()

    @rule()
    def drain(self) -> None:
        changed = self.watch.drain()
        expected = {request: self.index.hits(path) for request, path in self.paths.items()}
        assert len(dict(changed)) == len(changed)
        assert dict(changed) == {request: hits for request, hits in expected.items() if hits != self.told[request]}
        self.told = expected
        assert self.watch.drain() == ()

    @invariant()
    def watches_who_waits(self) -> None:
        assert len(self.watch) == len(self.paths)


WatchMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestWatch = WatchMachine.TestCase


def test_a_middle_eviction_steps_back_to_before_it_and_its_return_brings_all_of_it_back() -> None:
    watch = HitWatch()
    index = ToyIndex(watch)
    path = (1, 2, 3, 4, 5)
    for length in range(1, 6):
        index.store(path[:length])
    watch.watch(RequestId(1), names_of(path))
    watch.watch(RequestId(2), names_of(path[:1]))
    assert watch.drain() == ((RequestId(1), 5), (RequestId(2), 1))
    index.remove(path[:2])
    assert watch.drain() == ((RequestId(1), 1),)
    index.store(path[:2])
    assert watch.drain() == ((RequestId(1), 5),)


def test_what_comes_and_goes_between_two_drains_is_not_told() -> None:
    watch = HitWatch()
    index = ToyIndex(watch)
    watch.watch(RequestId(1), names_of((1, 2)))
    index.store((1,))
    index.store((1, 2))
    index.remove((1, 2))
    index.remove((1,))
    assert watch.drain() == ()


def test_nothing_is_kept_of_a_request_that_left_or_of_a_name_that_was_removed() -> None:
    watch = HitWatch()
    index = ToyIndex(watch)
    path = tuple(range(50))
    for request in range(20):
        watch.watch(RequestId(request), names_of(path[: request + 1]))
    for length in range(1, 51):
        index.store(path[:length])
    watch.drain()
    for length in range(50, 0, -1):
        index.remove(path[:length])
    for request in range(20):
        watch.unwatch(RequestId(request))
    watch.drain()
    assert all(not getattr(watch, name) for name in HitWatch().__dict__)


BLOCK = 2
PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=12).map(lambda ids: array("i", ids).tobytes()), max_size=8)


def prefix_of(tokens: bytes) -> Prefix:
    return Prefix(root_key(BLOCK), tokens, chain_names(tokens, BLOCK))


@pytest.mark.parametrize("index_of", [PrefixChain, PrefixTree])
@settings(max_examples=50, deadline=None)
@given(stored=PROMPTS, waiting=PROMPTS, data=st.data())
def test_hits_are_the_full_blocks_that_a_match_of_the_real_index_finds(
    index_of: type[PrefixIndex], stored: list[bytes], waiting: list[bytes], data: st.DataObject
) -> None:
    watch = HitWatch()
    index = index_of((LayerGroup("full", 0, 1),), BLOCK)
    index.listener = watch
    for request, tokens in enumerate(waiting):
        watch.watch(RequestId(request), prefix_of(tokens).names)
    told = dict.fromkeys(range(len(waiting)), 0)

    def check() -> None:
        told.update(watch.drain())
        assert list(told.values()) == [len(index.match(prefix_of(tokens), len(tokens)).blocks[0]) for tokens in waiting]

    blocks: list[int] = []
    for tokens in stored:
        branch = index.begin(root_key(BLOCK))
        for place, name in enumerate(prefix_of(tokens).names):
            block = len(blocks) + 1
            part = tokens[4 * BLOCK * place : 4 * BLOCK * (place + 1)]
            branch = index.publish(branch, name, part, [block])
            blocks.append(block)
        if data.draw(st.booleans()):
            check()
    check()
    for block in reversed(blocks):  # a branch's end before what it hangs on
        if index.holds(block):
            index.forget(block)
        if data.draw(st.integers(0, 3)) == 0:
            check()
    index.clear()
    check()
