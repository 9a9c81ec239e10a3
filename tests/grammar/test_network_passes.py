"""The passes over a sketched network: what it matches stays, what cannot be used goes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.counting import repeat
from asyncpage.grammar.network import MAX_STATES, Network
from asyncpage.grammar.sketch import Sketch
from asyncpage.grammar.tightening import tighten
from asyncpage.grammar.trimming import trim
from asyncpage.grammar.writing import write_words
from tests.grammar.walking import Walk

STATES, RULES = 8, 3
states = st.integers(0, STATES - 1)
edges = st.tuples(states, st.sampled_from([(97, 97), (98, 98), (97, 98)]), states)
# Calls go to later rules only, or come behind an edge, so that no rule is called before a byte was read.
sketches = st.fixed_dictionaries(
    {
        "edges": st.lists(edges, max_size=12),
        "jumps": st.lists(st.tuples(states, states), max_size=4),
        "calls": st.lists(st.tuples(states, st.integers(1, RULES - 1), states), max_size=3),
    }
)


def sketch_of(drawn: dict[str, Any]) -> Sketch:
    """Rule r starts at state 2r and ends at 2r + 1; states are kept apart by rule, as builders keep them."""
    sketch = Sketch()
    for _ in range(RULES * STATES):
        sketch.add_state()
    for rule in range(RULES):
        base = rule * STATES
        sketch.starts.append(base)
        sketch.finals.append(base + 1)
    for index, (source, (low, high), target) in enumerate(drawn["edges"]):
        base = index % RULES * STATES
        if source != 1:
            sketch.edges[base + source].append((low, high, base + target))
    for index, (source, target) in enumerate(drawn["jumps"]):
        base = index % RULES * STATES
        if source not in (1, target):
            sketch.jumps[base + source].append(base + target)
    for index, (source, rule, target) in enumerate(drawn["calls"]):
        base = index % rule * STATES
        if source != 1:
            sketch.calls[base + source].append((rule, base + target))
    return sketch


def language(network: Network) -> set[bytes]:
    """Its texts of up to four letters."""
    walk = Walk(network)
    texts = (bytes(text) for length in range(5) for text in itertools.product(b"ab", repeat=length))
    return {text for text in texts if walk.accepts(text)}


def counted(low: int, high: int | None) -> Network:
    """`low` to `high` times the letter a."""
    builder = NetworkBuilder()

    def write(source: int, target: int) -> None:
        builder.byte(source, 97, 97, target)

    repeat(builder, write, low, high, builder.start(), builder.final())
    return builder.finish()


def of_words(words: Iterable[bytes]) -> Network:
    builder = NetworkBuilder()
    write_words(builder, words, builder.start(), builder.final())
    return builder.finish()


@settings(max_examples=200, deadline=None)
@given(sketches)
def test_passes_keep_the_language_and_leave_no_dead_end(drawn: dict[str, Any]) -> None:
    before = language(sketch_of(drawn).to_network())
    sketch = sketch_of(drawn)
    if not trim(sketch):
        assert not before
        return
    tighten(sketch)
    network = sketch.to_network()
    assert language(network) == before
    again = sketch_of(drawn)
    assert trim(again)
    tighten(again)
    assert again.to_network().to_bytes() == network.to_bytes()
    assert Network.from_bytes(network.to_bytes()).to_bytes() == network.to_bytes()
    trimmed = Sketch()  # a network whose states all lead to an end is not trimmed further
    for _ in range(network.states):
        trimmed.add_state()
    for source, low, high, target in network.edges.tolist():
        trimmed.edges[source].append((low, high, target))
    for source, target in network.jumps.tolist():
        trimmed.jumps[source].append(target)
    for source, rule, target in network.calls.tolist():
        trimmed.calls[source].append((rule, target))
    trimmed.starts, trimmed.finals = network.starts.tolist(), network.finals.tolist()
    assert trim(trimmed)
    assert trimmed.to_network().states == network.states


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3_500), st.one_of(st.none(), st.integers(0, 3_500)))
def test_a_repetition_matches_exactly_its_counts(low: int, more: int | None) -> None:
    high = None if more is None else low + more
    walk = Walk(counted(low, high))
    places = walk.start
    for count in range((high or low) + 70):
        assert walk.is_end(places) == (low <= count and (high is None or count <= high))
        places = walk.step(places, 97)


@pytest.mark.parametrize("count", [1_000, 5_000, 100_000, 10**6])
def test_large_counts_take_few_states(count: int) -> None:
    assert counted(1, count).states < 5_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=5), min_size=1, max_size=12))
def test_words_are_matched_and_nothing_else(words: list[bytes]) -> None:
    network = of_words(words)
    walk = Walk(network)
    for word in words:
        assert walk.accepts(word)
        for other in (word + b"x", word[:-1], b"\0" + word):
            assert walk.accepts(other) == (other in words)
    sources = [tuple(edge[:2]) for edge in network.edges.tolist()]
    assert len(sources) == len(set(sources)), "one byte leads one way"


def test_words_share_their_endings() -> None:
    assert of_words(f"{index:04d}-same-ending".encode() for index in range(10_000)).states < 30


def test_a_network_without_an_end_is_refused() -> None:
    builder = NetworkBuilder()
    builder.byte(builder.start(), 97, 97, builder.start())
    with pytest.raises(RequestError, match="no text can match"):
        builder.finish()


def test_states_are_bounded() -> None:
    builder = NetworkBuilder()
    with pytest.raises(RequestError, match=str(MAX_STATES)) as raised:
        builder.literal(builder.start(), b"a" * MAX_STATES, builder.final())
    assert raised.value.failure.code == "grammar_too_large"
