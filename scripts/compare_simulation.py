"""Plays the same traces to the real engine and to the simulator fitted to it, and prints how far they are apart.

    .venv/bin/python scripts/compare_simulation.py [MODEL] [--runs 5]

Every run has a trace of its own and records a journal; it is simulated with the latency model that was fitted to the
journal of the run before it. Meant for a quiet machine: what else runs there is measured too. `speed` is the time that
the model says the real run's own steps took, over what they took: away from 1, the machine was another one meanwhile.
Exits with 1 when throughput or median TTFT are more than 15 % apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from asyncpage.clock import SystemClock
from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.simulation.driver import Driver
from asyncpage.simulation.fit import fit_latency, modelled_s
from asyncpage.simulation.journal_steps import Recorded, journal_steps
from asyncpage.simulation.run import Machine, no_progress, simulate
from asyncpage.simulation.synthetic import Arrivals, Shape, synthetic_trace
from asyncpage.simulation.tally import Summary
from asyncpage.simulation.trace import Trace

SHAPE = Shape(input_tokens=60, output_tokens=40, spread=0.5, systems=2, system_tokens=100, turns=3.0, pause_s=1.0)
HELD = ("output_throughput", "median_ttft_ms")
COMPARED = (*HELD, "median_tpot_ms", "median_e2el_ms", "total_cached_tokens")
BAR = 0.15

Pairs = Sequence[tuple[Summary, Summary]]
"""Of the real engine and of the simulated one, a pair a run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=2.0, help="sessions a second")
    arguments = parser.parse_args()

    def trace(seed: int) -> Trace:
        return synthetic_trace(
            "chat",
            SHAPE,
            Arrivals(arguments.rate),
            requests=arguments.requests,
            seed=seed,
            end_id=2000,
            most_tokens=2000,
        )

    config = EngineConfig(model=arguments.model, max_model_len=2048, max_num_seqs=16, seed=0)
    with TemporaryDirectory() as folder:

        def real(run: int) -> tuple[Summary, Recorded]:
            journal = Path(folder) / f"{run}.journal"
            summary = asyncio.run(_play(replace(config, journal=str(journal)), trace(run)))
            return summary, journal_steps(journal)

        _, before = real(0)
        pairs: list[tuple[Summary, Summary]] = []
        for run in range(1, arguments.runs + 1):
            fit = fit_latency(before.steps)
            print(fit)
            like = replace(config, num_kv_blocks=before.blocks, max_model_len=before.max_model_len)
            summary, recorded = real(run)
            pairs.append((summary, simulate(like, Machine(fit.latency, before.device), trace(run)).summary))
            speed = float(modelled_s(fit.latency, recorded.steps).sum() / recorded.steps.seconds.sum())
            ratios = ", ".join(f"{name} {_ratio(name, [pairs[-1]]):.3f}" for name in COMPARED)
            print(f"run {run}: {ratios}, speed {speed:.3f}")
            before = recorded
    print(f"{'medians of ' + str(arguments.runs) + ' runs':<24}{'real':>12}{'simulated':>12}{'ratio':>8}")
    for name in COMPARED:
        print(f"{name:<24}{_median(name, pairs, 0):>12.2f}{_median(name, pairs, 1):>12.2f}{_ratio(name, pairs):>8.3f}")
    return 0 if all(abs(_ratio(name, pairs) - 1) <= BAR for name in HELD) else 1


def _median(name: str, pairs: Pairs, side: int) -> float:
    return statistics.median(float(pair[side][name]) for pair in pairs)


def _ratio(name: str, pairs: Pairs) -> float:
    """Simulated over real."""
    return _median(name, pairs, 1) / _median(name, pairs, 0)


async def _play(config: EngineConfig, trace: Trace) -> Summary:
    engine = await AsyncEngine.start(config)
    try:
        driver = Driver(engine, trace, SystemClock(), most_open=None, on_progress=no_progress)
        tally = await driver.run()
        stats = await engine.ping(5.0)
    finally:
        await engine.stop()
    return tally.summary(stats["scheduler"], stats["executor"])


if __name__ == "__main__":
    sys.exit(main())
