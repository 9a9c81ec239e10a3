"""Plays one trace with each kind of prefix index and sets what they did side by side, in six dimensions.

`asyncpage simulate --compare-index` prints it.

INVARIANT: both kinds are asked by the same engine with the same settings; answers depend on prompts only, so both see
the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from asyncpage.config import EngineConfig
from asyncpage.core.block_names import extend_chain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.simulation.index_meter import IndexMeter
from asyncpage.simulation.run import Machine, simulate
from asyncpage.simulation.tally import Summary
from asyncpage.simulation.trace import Trace

KINDS = ("chain", "tree")

Figures = Mapping[str, float | int | str]
Dimensions = Mapping[str, Figures]
"""Figures by name, under the six dimensions."""

_SAMPLE_BLOCKS = 1000

_IDENTITY = {
    "chain": "yes: it is found by its name, a digest of tokens",
    "tree": "only by the same names, which it keeps but does not use",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One kind of index: its figures, the simulation's summary, and the text of its first failure."""

    kind: str
    dimensions: Dimensions
    summary: Summary
    first_failure: str


def compare_indexes(
    config: EngineConfig,
    machine: Machine,
    trace: Trace,
    now: Callable[[], float],
    *,
    most_open: int | None = None,
    on_progress: Callable[[str, int, int | None], None] = lambda kind, done, total: None,
) -> tuple[Comparison, ...]:
    """Simulate `trace` once for each kind. `now`: seconds of work, real ones. Errors: as in `simulate`."""
    return tuple(_play(kind, config, machine, trace, now, most_open, on_progress) for kind in KINDS)


def _play(
    kind: str,
    config: EngineConfig,
    machine: Machine,
    trace: Trace,
    now: Callable[[], float],
    most_open: int | None,
    on_progress: Callable[[str, int, int | None], None],
) -> Comparison:
    meters: list[IndexMeter] = []

    def around(index: PrefixIndex) -> PrefixIndex:
        meters.append(IndexMeter(index, block_size=config.block_size, groups=1, now=now))
        return meters[-1]

    outcome = simulate(
        replace(config, prefix_index=kind),
        machine,
        trace,
        most_open=most_open,
        around_index=around,
        on_progress=lambda done, total: on_progress(kind, done, total),
    )
    return Comparison(kind, dimensions(kind, meters[0], config.block_size, now), outcome.summary, outcome.first_failure)


def dimensions(kind: str, meter: IndexMeter, block_size: int, now: Callable[[], float]) -> Dimensions:
    """What a meter has counted, under the six dimensions."""
    counts = meter.counts
    operations = counts.named + counts.nameless + counts.evictions
    return {
        "granularity": {
            "tokens_reusable": counts.reusable,
            "tokens_reused": counts.reused,
            "tokens_copied_inside_a_block": counts.copied,
            "tokens_lost_to_alignment": counts.reusable - counts.reused,
        },
        "lookup cost": {
            "lookups": counts.lookups,
            "us_a_lookup": _each_us(counts.lookup_s, counts.lookups),
            "us_a_1000_prompt_tokens": 1000 * _each_us(counts.lookup_s, counts.prompt_tokens),
            "us_naming_1000_tokens_off_the_path": _naming_us(block_size, now),
        },
        "eviction cost": {
            "blocks_evicted": counts.evictions,
            "us_a_block": _each_us(counts.evict_s, counts.evictions),
        },
        "maintenance": {
            "structure_operations": operations,
            "us_an_operation": _each_us(counts.publish_s + counts.evict_s, operations),
            "bytes_a_cached_token": meter.bytes_a_token(),
        },
        "identity": {
            "other_processes_can_name_a_block": _IDENTITY[kind],
            "blocks_with_a_name": counts.named,
            "names_that_are_digests_of_tokens": counts.true_names,
            "blocks_without_a_name": counts.nameless,
        },
        "duplicates while in flight": {"blocks_computed_twice": counts.duplicates},
    }


def _each_us(total_s: float, count: int) -> float:
    return 1e6 * max(0.0, total_s) / count if count else 0.0


def _naming_us(block_size: int, now: Callable[[], float]) -> float:
    """What the tokenizer takes to name the blocks of 1,000 tokens, before a prompt reaches the scheduler."""
    tokens = bytes(4 * block_size * _SAMPLE_BLOCKS)
    took_s = []
    for _ in range(5):  # the least: what else the machine does only adds
        began = now()
        extend_chain(bytes(32), tokens, block_size)
        took_s.append(now() - began)
    return 1e6 * min(took_s) * 1000 / (block_size * _SAMPLE_BLOCKS)


def comparison_table(comparisons: tuple[Comparison, ...]) -> str:
    """The six dimensions as lines for people, a column a kind."""
    lines = [f"{'':<40}" + "".join(f"{found.kind:>16}" for found in comparisons)]
    for dimension, figures in comparisons[0].dimensions.items():
        lines.append(dimension)
        for name in figures:
            values = [found.dimensions[dimension][name] for found in comparisons]
            if any(isinstance(value, str) for value in values):
                lines.append(f"  {name.replace('_', ' ')}")
                lines += [f"    {found.kind}: {value}" for found, value in zip(comparisons, values, strict=True)]
            else:
                lines.append(f"  {name.replace('_', ' '):<38}" + "".join(f"{_figure(value):>16}" for value in values))
    return "\n".join(lines)


def _figure(value: float | int | str) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
