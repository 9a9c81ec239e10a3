"""Metrics: gauges that fall when the work is gone, a format that parses, and a bounded number of series."""

from __future__ import annotations

import asyncio
import signal

from prometheus_client.parser import text_string_to_metric_families

from tests.cases.invariants import GAUGES, until
from tests.cases.model_folder import Model
from tests.cases.suite import Run, Suite, covers
from tests.cases.test_kv_scheduler import crowd_of


async def _series(run: Run) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    text = (await run.client.get("/metrics")).body.decode()
    families = text_string_to_metric_families(text)
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}


@covers("MET-01")
async def test_gauges_fall_without_any_new_request_and_series_stay_few(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        run.growth = 64 << 20
        for turn in range(2):
            body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}
            process = await crowd_of(run, 100, body)
            await asyncio.sleep(0.3)
            loaded = await run.client.get("/metrics")
            assert loaded.seconds < 0.2 * suite.slack * 2
            gauges = await run.client.gauges()
            assert gauges["num_requests_running"] + gauges["num_requests_waiting"] > 0
            process.send_signal(signal.SIGKILL)
            await process.wait()

            async def busy() -> str:
                now = await run.client.gauges()
                return str({name: now[name] for name in GAUGES if now[name]} or "")

            await until(busy, 2.0 * suite.slack)
            if turn == 0:
                await run.client.complete(prompt="x", model="bogus-0")
                before = await _series(run)
        for start in range(0, 1000 if suite.thorough else 200, 50):
            await asyncio.gather(
                *(
                    run.client.complete(prompt="x", model=f"bogus-{start + number}", user=f"user-{number}")
                    for number in range(50)
                )
            )
        after = await _series(run)
        assert len(after) <= len(before) + 4
        assert not any("bogus" in value or "user-" in value for _, labels in after for _, value in labels)
