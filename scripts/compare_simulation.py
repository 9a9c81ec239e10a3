"""Plays the same traces to the real engine and to the simulator fitted to it, and prints how far they are apart.

    .venv/bin/python scripts/compare_simulation.py [MODEL] [--runs 5]

The first run records the journal that the latency model is fitted to; each of the others has a trace of its own.
Meant for a quiet machine: what else runs there is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from asyncpage.clock import SystemClock
from asyncpage.config import EngineConfig
from asyncpage.engine import AsyncEngine
from asyncpage.simulation.driver import Driver
from asyncpage.simulation.fit import fit_latency
from asyncpage.simulation.journal_steps import journal_steps
from asyncpage.simulation.run import Machine, simulate
from asyncpage.simulation.synthetic import Arrivals, Shape, synthetic_trace
from asyncpage.simulation.tally import Summary
from asyncpage.simulation.trace import Trace

SHAPE = Shape(input_tokens=60, output_tokens=40, spread=0.5, systems=2, system_tokens=100, turns=3.0, pause_s=1.0)
COMPARED = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "median_e2el_ms", "total_cached_tokens")


def main() -> None:
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
        journal = Path(folder) / "run.journal"
        asyncio.run(_real(replace(config, journal=str(journal)), trace(0)))
        recorded = journal_steps(journal)
    fit = fit_latency(recorded.steps)
    print(fit)
    machine = Machine(fit.latency, recorded.device)
    like = replace(config, num_kv_blocks=recorded.blocks, max_model_len=recorded.max_model_len)
    pairs = [
        (asyncio.run(_real(config, trace(run))), simulate(like, machine, trace(run)).summary)
        for run in range(1, arguments.runs + 1)
    ]
    print(f"{'medians of ' + str(arguments.runs) + ' runs':<24}{'real':>12}{'simulated':>12}{'ratio':>8}")
    for name in COMPARED:
        real, simulated = (statistics.median(float(found[name]) for found in side) for side in zip(*pairs, strict=True))
        print(f"{name:<24}{real:>12.2f}{simulated:>12.2f}{simulated / real:>8.3f}")


async def _real(config: EngineConfig, trace: Trace) -> Summary:
    engine = await AsyncEngine.start(config)
    try:
        driver = Driver(engine, trace, SystemClock(), most_open=None, on_progress=lambda done, total: None)
        tally = await driver.run()
        stats = await engine.ping(5.0)
    finally:
        await engine.stop()
    return tally.summary(stats["scheduler"], stats["executor"])


if __name__ == "__main__":
    main()
