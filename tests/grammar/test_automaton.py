"""Masks and walks against brute force: a naive walk of the network, byte by byte, with every stack written out."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from asyncpage.grammar import automaton as automata
from asyncpage.grammar import configuration, lexicon
from asyncpage.grammar.automaton import DEAD, Automaton
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.configuration import GrammarFull, GrammarLimit
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.masks import MaskCache
from asyncpage.grammar.network import Network
from asyncpage.grammar.source import GrammarSource
from tests.grammar.networks import (
    CHARACTER,
    any_of,
    byte,
    call,
    json_rules,
    network,
    sequence,
    star,
    text,
    up_to,
)

Stack = tuple[tuple[int, int], ...]  # (final state of the rule, state to go on in), the newest last
Place = tuple[int, Stack]

DEEPEST = 12  # of the naive walk; what goes beyond is no example


class Naive:
    """The definition: all places that a text may have led to."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.start = self.closed({(int(network.starts[0]), ((int(network.finals[0]), -1),))})

    def closed(self, places: Iterable[Place]) -> frozenset[Place]:
        net = self.network
        found = set(places)
        waiting = list(found)
        while waiting:
            state, stack = waiting.pop()
            assume(len(stack) <= DEEPEST)
            more: list[Place] = [(int(to), stack) for at, to in net.jumps if at == state]
            more += [
                (int(net.starts[rule]), (*stack, (int(net.finals[rule]), int(to))))
                for at, rule, to in net.calls
                if at == state
            ]
            if stack and stack[-1][0] == state and stack[-1][1] >= 0:
                more.append((stack[-1][1], stack[:-1]))
            for place in more:
                if place not in found:
                    found.add(place)
                    waiting.append(place)
        return frozenset(found)

    def after(self, places: frozenset[Place], data: bytes) -> frozenset[Place]:
        for one in data:
            moved = {
                (int(to), stack)
                for state, stack in places
                for at, low, high, to in self.network.edges
                if at == state and low <= one <= high
            }
            places = self.closed(moved)
        return places

    def goes_on(self, places: frozenset[Place]) -> bool:
        """Whether a text may be over here or have one more byte."""
        return self.may_end(places) or bool({state for state, _ in places} & set(self.network.edges[:, 0].tolist()))

    def may_end(self, places: frozenset[Place]) -> bool:
        return any(stack[-1] == (state, -1) for state, stack in places)


def allowed(automaton: Automaton, state: int, size: int) -> list[bool]:
    return np.unpackbits(automaton.mask(state), count=size, bitorder="little").astype(bool).tolist()


BYTES = b"ab\x80\xff"


@st.composite
def networks(draw: st.DrawFn) -> Network:
    states = draw(st.integers(1, 7))
    state = st.integers(0, states - 1)
    rules = draw(st.integers(1, 3))
    letter = st.sampled_from(BYTES)
    edges = draw(st.lists(st.tuples(state, letter, letter, state), min_size=1, max_size=10))
    edges = [(at, min(low, high), max(low, high), to) for at, low, high, to in edges]
    jumps = draw(st.lists(st.tuples(state, state), max_size=4))
    calls = draw(st.lists(st.tuples(state, st.integers(0, rules - 1), state), max_size=4))

    def column(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
        return np.array(rows, dtype=np.int32).reshape(-1, width)

    return Network(
        states,
        np.array(draw(st.lists(state, min_size=rules, max_size=rules)), dtype=np.int32),
        np.array(draw(st.lists(state, min_size=rules, max_size=rules)), dtype=np.int32),
        column(edges, 4),
        column(jumps, 2),
        column(calls, 3),
    )


tokens = st.lists(
    st.lists(st.sampled_from(BYTES), max_size=4).map(bytes) | st.integers(5, 9).map(lambda n: b"a" * n),
    min_size=1,
    max_size=24,
)


def check_walk(automaton: Automaton, naive: Naive, vocabulary: Sequence[bytes], choices: Iterator[float]) -> None:
    """Some steps by tokens that are allowed: each mask, each end and each dead step is what the definition says."""
    state, places = automaton.start, naive.start
    for choice in choices:
        reached = [naive.after(places, token) if token else frozenset() for token in vocabulary]
        assert allowed(automaton, state, len(vocabulary)) == list(map(naive.goes_on, reached))
        assert automaton.may_end(state) == naive.may_end(places)
        for token, there in enumerate(reached):
            assert (automaton.advance(state, token) != DEAD) == naive.goes_on(there)
        ways = [token for token, there in enumerate(reached) if naive.goes_on(there)]
        if not ways:
            return
        token = ways[int(choice * len(ways))]
        state, places = automaton.advance(state, token), reached[token]


@settings(max_examples=100, deadline=None)
@given(networks(), tokens, st.sampled_from([0, 2, 64]), st.randoms(use_true_random=False))
def test_masks_are_those_of_a_naive_walk(
    network: Network, vocabulary: list[bytes], deep: int, chance: random.Random
) -> None:
    naive = Naive(network)
    assume(naive.start)
    with patch.object(lexicon, "DEEP_NODES", deep):
        try:
            automaton = Automaton(network, Lexicon(vocabulary))
        except GrammarLimit:
            reject()
    if automaton.start == DEAD:  # a root from which nothing can be said, not even the end
        assert not naive.goes_on(naive.start)
        return
    try:
        check_walk(automaton, naive, vocabulary, (chance.random() for _ in range(5)))
    except GrammarLimit:
        reject()  # it calls itself without a byte between


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 6), tokens, st.randoms(use_true_random=False))
def test_places_in_a_counted_text_share_masks_only_where_no_token_can_tell_them_apart(
    most: int, tail: int, vocabulary: list[bytes], chance: random.Random
) -> None:
    letter = any_of(byte((0x61, 0x61)), sequence(text(b"b"), byte((0x80, 0xFF))))
    counted = network(sequence(up_to(most, letter), up_to(tail, text(b"\xff"))))
    check_walk(
        Automaton(counted, Lexicon(vocabulary)), Naive(counted), vocabulary, (chance.random() for _ in range(most + 3))
    )


def test_a_long_counted_text_needs_few_masks() -> None:
    vocabulary = [b"a", b"ab", b"abc", b'"', b'a"', "é".encode(), "é".encode()[:1], "é".encode()[1:]]
    counted = network(sequence(up_to(500, CHARACTER), text(b'"')))
    cache = MaskCache()
    automaton = Automaton(counted, Lexicon(vocabulary), cache)
    state = automaton.start
    for _ in range(490):
        automaton.mask(state)
        state = automaton.advance(state, 0)
    assert len(cache) == 1
    for _ in range(10):
        assert allowed(automaton, state, 1) == [True]
        state = automaton.advance(state, 0)
    assert allowed(automaton, state, len(vocabulary)) == [False, False, False, True, False, False, False, False]


def test_a_token_may_end_inside_a_character() -> None:
    vocabulary = ["日".encode()[:1], "日".encode()[1:2], "日".encode()[2:], b"\xc0", b"\xff", b'"']
    automaton = Automaton(network(sequence(text(b'"'), star(CHARACTER), text(b'"'))), Lexicon(vocabulary))
    state = automaton.walk(automaton.start, b'"')
    assert allowed(automaton, state, 6) == [True, False, False, False, False, True]
    state = automaton.advance(state, 0)
    assert allowed(automaton, state, 6) == [False, True, True, False, False, False]  # both may go on in a character
    state = automaton.advance(automaton.advance(state, 1), 2)
    assert automaton.accepts('"日"'.encode())
    assert allowed(automaton, state, 6) == [True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("data", "is_json"),
    [
        (b'{"a":1}', True),
        (b'{"a":[{"b":[]},null,-1.5]}', True),
        (b'{ "a" : "x\\"y" , "b":true}', True),
        (b"{}", True),
        (b"[]", False),
        (b'{"a":1', False),
        (b'{"a":[1}]', False),
        (b'{"a":1}}', False),
        (b'{"a" 1}', False),
        (b'{"a":"\xff"}', False),
    ],
)
def test_objects_and_arrays_nest_as_json_does(data: bytes, is_json: bool) -> None:
    automaton = Automaton(network(*json_rules()), Lexicon([b"a"]))
    assert automaton.accepts(data) == is_json


def test_lists_do_not_nest_and_what_nests_too_deep_is_not_allowed() -> None:
    items = network(sequence(text(b"["), call(1), text(b"]")), any_of(text(b"]"), sequence(text(b"1,"), call(1))))
    automaton = Automaton(items, Lexicon([b"1,", b"1", b","]))
    assert automaton.accepts(b"[" + b"1," * 5000 + b"]]")  # each item ends with a call of the rest: a tail call
    nested = Automaton(network(call(1), any_of(text(b"x"), sequence(text(b"["), call(1), text(b"]")))), Lexicon([b"["]))
    deep = configuration.MAX_DEPTH - 1
    assert nested.accepts(b"[" * deep + b"x" + b"]" * deep)
    state = nested.walk(nested.start, b"[" * configuration.MAX_DEPTH)
    assert allowed(nested, state, 1) == [False]


def test_a_grammar_that_can_be_read_in_too_many_ways_is_refused_alone() -> None:
    ways = network(call(1), any_of(text(b"a"), sequence(call(1), text(b"+"), call(1))))  # it begins with itself
    with patch.object(configuration, "MAX_CLOSURE", 100), pytest.raises(GrammarLimit, match="more than 100 ways"):
        Automaton(ways, Lexicon([b"a"])).walk(0, b"aaaa")


def test_an_automaton_that_is_full_says_so_and_a_fresh_one_goes_on() -> None:
    words = network(sequence(text(b'"'), up_to(400, CHARACTER), text(b'"')))
    with patch.object(automata, "MAX_BYTES", 30_000):
        full = Automaton(words, Lexicon([b"a"]))
        state = full.walk(full.start, b'"')
        with pytest.raises(GrammarFull):
            full.walk(state, b"a" * 400)
        fresh = Automaton(words, Lexicon([b"a"]))
        assert fresh.walk(fresh.start, b'"aaaa"') != DEAD


def test_one_cache_bounds_the_masks_of_several_automata() -> None:
    vocabulary = [bytes([65 + i]) for i in range(16)]
    cache = MaskCache(most_bytes=3 * 2)
    automata_ = [
        Automaton(network(text(bytes(vocabulary_))), Lexicon(vocabulary), cache) for vocabulary_ in (b"AB", b"BA")
    ]
    for automaton, first in zip(automata_, (0, 1), strict=True):
        state = automaton.start
        assert allowed(automaton, state, 16) == [i == first for i in range(16)]
        assert allowed(automaton, automaton.advance(state, first), 16) == [i == 1 - first for i in range(16)]
    assert len(cache) == 3
    assert allowed(automata_[0], automata_[0].start, 16) == [i == 0 for i in range(16)]


def test_the_compilers_networks_are_walked_too() -> None:
    pattern = compile_source(GrammarSource("regex", "(ab|a)*c{2,3}"))
    automaton = Automaton(pattern, Lexicon([b"a", b"b", b"c", b"abc", b"cc", b"bb"]))
    assert automaton.accepts(b"abacc")
    assert not automaton.accepts(b"abc")
    assert allowed(automaton, automaton.walk(automaton.start, b"ab"), 6) == [True, False, True, True, True, False]


def test_a_mask_that_would_take_too_long_to_find_out_is_refused_alone() -> None:
    vocabulary = [bytes([first, second, first]) for first in range(65, 75) for second in range(65, 75)]
    automaton = Automaton(network(any_of(*map(text, vocabulary))), Lexicon(vocabulary))
    little = patch.object(automata, "MAX_WORK", 5 * automata.STATE_WORK)
    with little, pytest.raises(GrammarLimit, match="too many ways"):
        automaton.mask(automaton.start)
    assert all(allowed(automaton, automaton.start, 100))


def test_a_grammar_that_can_be_read_in_many_ways_takes_no_more_memory_than_it_says() -> None:
    source = compile_source(GrammarSource("regex", "[ab]*a[ab]{300}"))
    lexicon = Lexicon([b"a", b"b"])
    randomness = random.Random(5)
    tracemalloc.start()
    automaton = Automaton(source, lexicon)
    for _ in range(6):
        assert automaton.walk(automaton.start, bytes(randomness.choices(b"ab", k=300))) != DEAD
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken > 1 << 20
    assert automaton.size_bytes >= taken


def test_masks_that_are_kept_do_not_keep_their_automaton() -> None:
    cache = MaskCache()
    automaton = Automaton(network(text(b"ab")), Lexicon([b"a", b"b"]), cache)
    automaton.mask(automaton.start)
    gone = weakref.ref(automaton)
    del automaton
    gc.collect()
    assert len(cache) == 1
    assert gone() is None
