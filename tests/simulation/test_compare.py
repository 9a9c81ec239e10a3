"""Chain and tree side by side: what the meter counts, against what the trace alone says."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.block_names import chain_names, root_key, root_name
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.step_latency import StepLatency
from asyncpage.messages import LayerGroup, Prefix
from asyncpage.simulation.compare import Comparison, compare_indexes, comparison_table
from asyncpage.simulation.index_meter import IndexMeter
from asyncpage.simulation.run import Machine
from asyncpage.simulation.synthetic import Arrivals, Shape, synthetic_trace
from asyncpage.simulation.trace import Trace

GROUPS = (LayerGroup("full", 0, 1),)
SIZE = 4


class Ticks:
    """A clock that goes on by one at each look."""

    def __init__(self) -> None:
        self._ticks = count()

    def __call__(self) -> float:
        return float(next(self._ticks))


def prefix(*tokens: int) -> Prefix:
    data = np.array(tokens, dtype="<i4").tobytes()
    return Prefix(root_key(SIZE), data, chain_names(data, SIZE))


@pytest.mark.parametrize("kind", [PrefixChain, PrefixTree])
def test_a_meter_answers_as_the_index_and_counts_what_passes(kind: type[PrefixIndex]) -> None:
    meter = IndexMeter(kind(GROUPS, SIZE), block_size=SIZE, groups=1, now=Ticks())
    plain = kind(GROUPS, SIZE)
    cached = prefix(*range(10))
    for index in (meter, plain):
        branch = index.match(cached, 9).branch
        for place in range(2):
            tokens = cached.tokens[16 * place : 16 * place + 16]
            branch = index.publish(branch, cached.names[place], tokens, [place + 1])
            assert branch is not None
        index.publish_tail(branch, cached.tokens[32:40], [3])
        # The same two blocks once more, computed by another who did not know.
        again = index.begin(cached.root)
        for place in range(2):
            tokens = cached.tokens[16 * place : 16 * place + 16]
            again = index.publish(again, cached.names[place], tokens, [place + 11])
    for tokens in ((0, 1, 2, 3, 4, 5, 99, 98, 97), tuple(range(12)), (7, 7, 7, 7, 7)):
        wanted = prefix(*tokens)
        found, expected = meter.match(wanted, len(tokens) - 1), plain.match(wanted, len(tokens) - 1)
        assert (found.blocks, found.donors, found.tail) == (expected.blocks, expected.donors, expected.tail)
    assert meter.holds(3) == plain.holds(3)
    assert len(meter) == len(plain) == 3
    counts = meter.counts
    assert (counts.lookups, counts.prompt_tokens) == (4, 10 + 9 + 12 + 5)
    # Of the prompts: six tokens (4 and two of a block), ten (two blocks and a tail of two), none.
    assert (counts.reusable, counts.reused, counts.copied) == (16, 16, 4)
    assert (counts.named, counts.true_names, counts.nameless, counts.duplicates) == (4, 4, 1, 2)
    meter.forget(3)
    meter.forget(2)
    assert (counts.evictions, len(meter)) == (2, 1)
    assert meter.bytes_a_token() > 16 / SIZE  # it holds the tokens themselves, at least
    assert meter.explain(cached, meter.match(cached, 9)).matched == 4
    assert meter.held(cached.names) == {cached.names[0]}
    meter.clear()
    assert (len(meter), meter.bytes_a_token()) == (0, 0.0)


def test_an_index_that_finds_less_than_is_held_loses_to_alignment() -> None:
    class Whole(PrefixChain):
        def _nearest(self, *arguments: object) -> tuple[None, int]:
            return None, 0

    meter = IndexMeter(Whole(GROUPS, SIZE), block_size=SIZE, groups=1, now=Ticks())
    cached = prefix(*range(8))
    branch = meter.begin(cached.root)
    for place in range(2):
        branch = meter.publish(branch, cached.names[place], cached.tokens[16 * place : 16 * place + 16], [place + 1])
    meter.match(prefix(0, 1, 2, 3, 4, 5, 6, 99, 100), 8)
    assert (meter.counts.reusable, meter.counts.reused) == (7, 4)


def test_a_name_that_is_not_the_digest_of_its_tokens_is_not_counted_as_true() -> None:
    meter = IndexMeter(PrefixChain(GROUPS, SIZE), block_size=SIZE, groups=1, now=Ticks())
    meter.publish(meter.begin(b"root"), root_name(b"another"), bytes(16), [1])
    assert (meter.counts.named, meter.counts.true_names) == (1, 0)


def chat(requests: int) -> Trace:
    shape = Shape(input_tokens=30, output_tokens=20, spread=0.5, systems=2, system_tokens=50, turns=4.0, pause_s=0.5)
    return synthetic_trace("chat", shape, Arrivals(4.0), requests=requests, seed=5, end_id=2047, most_tokens=2000)


def compared(blocks: int) -> tuple[Comparison, ...]:
    config = EngineConfig(num_kv_blocks=blocks, max_num_seqs=8, max_model_len=1000)
    return compare_indexes(config, Machine(StepLatency(5e-3, 1e-4), "cpu"), chat(60), Ticks())


def test_both_kinds_reuse_the_same_tokens_of_the_same_trace() -> None:
    chain, tree = compared(blocks=4000)
    assert (chain.kind, tree.kind) == ("chain", "tree")
    granularity = chain.dimensions["granularity"]
    assert granularity == tree.dimensions["granularity"]
    assert granularity["tokens_lost_to_alignment"] == 0
    assert granularity["tokens_reused"] == chain.summary["total_cached_tokens"]
    assert chain.summary == tree.summary
    assert chain.summary["completed"] == 60
    identity = chain.dimensions["identity"]
    assert identity["names_that_are_digests_of_tokens"] == identity["blocks_with_a_name"] > 0
    assert chain.dimensions["eviction cost"]["blocks_evicted"] == 0


def test_a_small_pool_evicts_and_a_clock_of_ticks_times_every_call_the_same() -> None:
    for found in compared(blocks=100):
        assert found.dimensions["eviction cost"]["blocks_evicted"] > 0
        assert found.dimensions["lookup cost"]["us_a_lookup"] == 0  # one tick for the call, one for looking twice
        assert found.dimensions["granularity"]["tokens_lost_to_alignment"] >= 0


def test_the_table_has_six_dimensions_and_a_column_a_kind() -> None:
    found = compared(blocks=4000)
    lines = comparison_table(found).splitlines()
    assert lines[0].split() == ["chain", "tree"]
    assert [line for line in lines[1:] if not line.startswith(" ")] == [
        "granularity",
        "lookup cost",
        "eviction cost",
        "maintenance",
        "identity",
        "duplicates while in flight",
    ]
    reused = found[0].dimensions["granularity"]["tokens_reused"]
    assert f"{reused:,}" in next(line for line in lines if "tokens reused" in line)
