"""Memory and scheduling: aborts give every block back, pressure never stops progress, order is kept."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.cases.answer import Answer
from tests.cases.client import COMPLETIONS
from tests.cases.invariants import until
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Run, Suite, covers

CROWD = Path(__file__).with_name("crowd.py")


def prompt_of(request: int, length: int) -> list[int]:
    return [3 + (request * 37 + place * place * 5 + place) % 490 for place in range(length)]


async def _blocks_are_back(run: Run) -> None:
    """Every block can be handed out, and one request can have them all."""

    async def held() -> str:
        gauges = await run.client.gauges()
        free, total = gauges["kv_cache_blocks_free"], gauges["kv_cache_blocks_total"]
        return "" if free == total else f"{free} of {total} blocks are free"

    await until(held, 2.0 * run.suite.slack)
    total = int((await run.client.gauges())["kv_cache_blocks_total"])
    answer = await run.client.complete(prompt=prompt_of(1, total * 8 - 1), max_tokens=1, temperature=0)
    assert answer.finish() == "length"


async def _abort_at_random(run: Run, request: int, randomness: random.Random) -> None:
    """Before the first byte, amid the upload, while prefilling or waiting, after some tokens, or at the end."""
    tokens = randomness.choice((1, 4, 30, 400))
    fields = {
        "model": "$M",
        "prompt": prompt_of(request, randomness.randint(1, 200)),
        "max_tokens": tokens,
        "n": randomness.choice((1, 1, 4)),
        "stream": randomness.random() < 0.7,
        "ignore_eos": True,
    }
    how = randomness.choice(("fin", "rst", "upload"))
    await run.client.leave(COMPLETIONS, fields, randomness.choice((0.0, 0.002, 0.02, 0.1, 0.4, 1.5)), how=how)


@covers("KVS-01")
async def test_two_thousand_aborts_leave_no_block_behind(suite: Suite, tiny: Model) -> None:
    rounds = 20 if suite.thorough else 4
    for caching in (True, False) if suite.thorough else (True,):
        async with suite.on(tiny, prefix_caching=caching, max_queue=256) as run:
            randomness = random.Random(1)
            before = (await run.client.gauges())["num_preemptions_total"]
            for start in range(0, rounds * 100, 100):
                await asyncio.gather(*(_abort_at_random(run, start + one, randomness) for one in range(100)))
                await _blocks_are_back(run)
            assert (await run.client.gauges())["num_preemptions_total"] > before


async def crowd_of(run: Run, count: int, body: dict[str, Any]) -> asyncio.subprocess.Process:
    """A client process with so many requests open."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CROWD), str(run.server.port), str(count),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"model": run.client.names.values["$M"], **body}).encode())
    process.stdin.close()
    await process.stdout.readline()
    return process


@covers("KVS-03")
async def test_a_crowd_that_dies_amid_prefill_and_preemption_harms_nobody(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        solo = await run.client.complete(prompt=prompt_of(5, 20), max_tokens=8, temperature=0)
        for turn in range(30 if suite.thorough else 5):
            body = {"prompt": prompt_of(turn, 150), "max_tokens": 60, "ignore_eos": True, "stream": turn % 2 == 0}
            process = await crowd_of(run, 64, body)
            await asyncio.sleep(0.3)  # the moment is of no account
            process.send_signal(signal.SIGKILL)
            await process.wait()
        answers = await asyncio.gather(
            *(run.client.complete(prompt=prompt_of(5, 20), max_tokens=8, temperature=0) for _ in range(20))
        )
        assert {answer.text() for answer in answers} == {solo.text()}
        await _blocks_are_back(run)


async def _under_pressure(run: Run, oracle: Oracle, **more: Any) -> None:
    """Forty requests of which fewer than two fit; all end, all right, and something always moves."""
    randomness = random.Random(4)
    before = await run.client.gauges()

    async def one(request: int) -> Answer:
        own = {"priority": randomness.randint(-5, 5)} if more.get("random_priority") else {}
        return await run.client.complete(
            prompt=prompt_of(request, 60), max_tokens=120, temperature=0, ignore_eos=True, stream=True,
            return_token_ids=True, n=more.get("n", 1), stream_options={"include_usage": True}, **own,
        )  # fmt: skip

    answers = await asyncio.gather(*(one(request) for request in range(40)))
    for request, answer in enumerate(answers):
        for index in range(more.get("n", 1)):
            assert answer.finish(index) == "length"
            assert len(answer.token_ids(index)) == 120
            oracle.check_greedy(prompt_of(request, 60), answer.token_ids(index))
    moments = sorted(moment for answer in answers for moment in answer.arrivals)
    assert max(after - earlier for earlier, after in pairwise(moments)) < 5 * run.suite.slack
    after = await run.client.gauges()
    preemptions = after["num_preemptions_total"] - before["num_preemptions_total"]
    recomputed = after["recomputed_tokens_total"] - before["recomputed_tokens_total"]
    assert 0 < preemptions <= 20 * 40 * more.get("n", 1)
    assert recomputed <= 10 * 40 * 180 * more.get("n", 1)


@covers("KVS-04")
async def test_forty_requests_in_a_pool_for_two_all_finish_right(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    async with suite.on(tiny) as run:
        await _under_pressure(run, oracle)


@covers("KVS-04", long=True)
async def test_pressure_with_choices_priorities_and_whole_prompts(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    async with suite.on(tiny) as run:
        await _under_pressure(run, oracle, n=2)
    async with suite.on(tiny, scheduling="priority") as run:
        await _under_pressure(run, oracle, random_priority=True)
    async with suite.on(tiny, chunked_prefill=False) as run:
        await _under_pressure(run, oracle)
    async with suite.on(tiny, whole_prompt_admission=False) as run:
        await _under_pressure(run, oracle)


@covers("KVS-06")
async def test_a_request_that_cannot_fit_ends_and_stands_in_nobodys_way(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        for request in run.case.requests:
            waiting = asyncio.ensure_future(run.request(request))
            await asyncio.sleep(0)
            small = await run.client.complete(prompt=[3, 4, 5, 6, 7], max_tokens=4, stream=True)
            assert small.first_s is not None
            assert small.first_s < 2 * suite.slack
            assert not small.failed
            answer = await waiting
            if request["json"]["max_tokens"] == 1:
                assert answer.status == 400
                assert "300" in answer.error["message"]
                assert "248" in answer.error["message"]
            else:
                assert answer.status != 200 or answer.finish() == "length"
                assert answer.status == 200 or answer.error["message"]


@covers("KVS-08")
async def test_smaller_priorities_go_first_and_all_finish_right(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    low = {"max_tokens": 100, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "priority": 10}
    urgent = {"prompt": prompt_of(99, 20), "max_tokens": 8, "temperature": 0, "stream": True, "priority": -100,
              "ignore_eos": True}  # fmt: skip
    async with suite.on(tiny) as run:
        solo = min([(await run.client.complete(**urgent)).first_s or 0 for _ in range(5)])

        async def alone_under_load() -> float:
            """The time to first token beside as many low ones as fit at once."""
            load = [asyncio.ensure_future(run.client.complete(prompt=prompt_of(n, 20), **low)) for n in range(4)]
            await asyncio.sleep(0.05)
            first = (await run.client.complete(**urgent)).first_s or 0
            await asyncio.gather(*load)
            return first

        under_load = max([await alone_under_load() for _ in range(3)])
        waiting = [asyncio.ensure_future(run.client.complete(prompt=prompt_of(n, 20), **low)) for n in range(30)]
        firsts = []
        while not all(one.done() for one in waiting):
            firsts.append((await run.client.complete(**urgent)).first_s or 0)
            await asyncio.sleep(0.2)
        firsts.sort()
        assert firsts[len(firsts) // 2] <= 2 * max(solo, under_load) * suite.slack
        for request, answer in enumerate(await asyncio.gather(*waiting)):
            oracle.check_greedy(prompt_of(request, 20), answer.token_ids())
        order: list[int] = []

        async def one(number: int, priority: int) -> None:
            await run.client.complete(prompt=prompt_of(number, 30), **{**low, "priority": priority})
            order.append(priority)

        # A long one holds the batch while the others queue up; then they must come in order of priority.
        priorities = [5, 1, 9, 3, 7, 0, 8, 2, 6, 4]
        async with asyncio.TaskGroup() as group:
            for number, priority in enumerate(priorities):
                group.create_task(one(number, priority * 10))
        first_half = set(order[:5])
        assert first_half == {0, 10, 20, 30, 40} or len(first_half & {0, 10, 20, 30, 40}) >= 4
