"""Records an engine under a load that has everything in it: aborts, deadlines, preemptions, losses, shared prefixes,
more adapters than slots.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

from asyncpage.actors.base import ExecutorEnd
from asyncpage.clock import Clock
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import RequestError
from asyncpage.house import StandIn
from asyncpage.messages import Adapter, ExecutorLost, ExecutorReady, RequestOptions, StepDone, StepFailed
from asyncpage.pipes.mailbox import Address
from asyncpage.simulation.stand_in import stand_in

VOCAB = 2048

CONFIG = EngineConfig(
    max_num_seqs=12,
    max_model_len=256,
    num_kv_blocks=70,  # a third of what the batch grows to
    block_size=8,
    max_num_batched_tokens=48,
    long_prefill_token_threshold=30,
    max_queue=80,
    seed=5,
    enable_lora=True,
    max_loras=2,
)
ADAPTERS = [Adapter(name * 64, f"/adapters/{name}") for name in "abc"]


class Faulty:
    """The way from the executor to the scheduler: step 60 fails, and after step 120 the executor is lost."""

    def __init__(self, scheduler: Address) -> None:
        self._scheduler = scheduler

    def send(self, message: object) -> None:
        if isinstance(message, StepDone) and message.number == 60:
            message = StepFailed(message.number, message.epoch, "out of luck")
        self._scheduler.send(message)
        if isinstance(message, StepDone) and message.number == 120:
            self._scheduler.send(ExecutorLost(message.epoch, "killed"))
            self._scheduler.send(ExecutorReady(message.epoch + 1))


def faulty_stand_in(config: EngineConfig) -> StandIn:
    base = stand_in(config, vocab_size=VOCAB)

    def executor(scheduler: Address, clock: Clock) -> ExecutorEnd:
        return base.executor(Faulty(scheduler), clock)

    return replace(base, executor=executor)


async def record(
    path: Path, *, requests: int = 120, seed: int = 1, config: EngineConfig = CONFIG, ping_s: float = 60.0
) -> dict[str, float]:
    """Serve `requests` and end; the scheduler's counts. Prompts are runs of ids from `prompt_of`."""
    config = replace(config, journal=str(path))
    engine = await AsyncEngine.start(config, stand_in=faulty_stand_in(config))
    chance = random.Random(seed)

    async def request(number: int) -> None:
        sampling = SamplingParams(
            max_tokens=chance.randint(1, 120),
            n=chance.choice((1, 1, 1, 3)),
            seed=number,
            stop=("never said",),
            stop_token_ids=(chance.randrange(300, VOCAB),),
            logprobs=chance.choice((None, 1)),
            prompt_logprobs=chance.choice((None, None, None, 0)),
        )
        options = RequestOptions(
            priority=chance.randrange(3),
            cache_salt=chance.choice(("", "", "a tenant")),
            deadline=engine.now() + chance.choice((0.0, 0.03)) if number % 11 == 0 else None,
            use_cache=number % 7 != 0,
            label=f"label-{number}",
            lora=ADAPTERS[number // 5 % 3] if number % 5 > 2 else None,
        )
        parts_wanted = chance.choice((1, 3, 1000, 1000))
        try:
            async for _ in engine.generate(prompt_of(number, chance.randint(1, 70)), sampling, options):
                parts_wanted -= 1
                if not parts_wanted:
                    return  # the client leaves
        except RequestError:
            pass  # its deadline, or a full queue

    try:
        for _ in range(2):
            await asyncio.gather(*(request(number) for number in range(requests // 2)))
        stats = (await engine.ping(ping_s))["scheduler"]
    finally:
        await engine.stop()
    return dict(stats)


def prompt_of(number: int, tokens: int) -> list[int]:
    """One of six conversations, as far as `tokens`, and an end of its own."""
    return [300 + (number % 6) * 211 + place for place in range(tokens)] + [1900 + number % 40]
