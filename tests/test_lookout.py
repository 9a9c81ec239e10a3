"""The lookout over a whole engine on a simulated executor, and over a front end that the test plays."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import RequestError
from asyncpage.lookout import MOST_LOOKERS, Lookout, Sight
from asyncpage.messages import BlockChart, Chart, Question, TokenPrompt
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.simulation.stand_in import simulated_handshake, stand_in

CONFIG = EngineConfig(num_kv_blocks=65, max_num_seqs=4, max_model_len=512, seed=0)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(CONFIG, stand_in=stand_in(CONFIG))
    yield engine
    await engine.stop()


def prompt(first: int, length: int) -> TokenPrompt:
    return TokenPrompt(array("i", range(first, first + length)).tobytes())


async def ask(engine: AsyncEngine, first: int, length: int, max_tokens: int) -> None:
    async for _ in engine.generate(prompt(first, length), SamplingParams(max_tokens=max_tokens, temperature=0)):
        pass


async def test_what_an_engine_has_done_is_seen_afterwards(engine: AsyncEngine) -> None:
    lookout = engine.lookout
    lookout.open()
    await ask(engine, 300, 40, 10)
    sight = await lookout.look()
    # 40 prompt tokens in one step, then nine of one token each; of the 49 that have KV, three blocks are full.
    assert [(step.rows, step.prefill_tokens, step.decode_tokens) for step in sight.steps] == [
        (1, 40, 0),
        *[(1, 0, 1)] * 9,
    ]
    assert [step.number for step in sight.steps] == sorted(step.number for step in sight.steps)
    assert int(sight.blocks.named.sum()) in (3, 4)  # and the rest of the last one may lend its beginning
    assert not sight.blocks.references.any()
    assert sight.boxes["tokenizer"].messages["Tokenize"] == 1
    assert sight.boxes["executor"].messages["Step"] == sight.boxes["scheduler"].messages["StepDone"] == 10
    assert sight.stats["scheduler"]["prompt_tokens"] == 40
    lookout.close()


async def test_a_request_that_runs_is_seen_with_its_blocks(engine: AsyncEngine) -> None:
    lookout = engine.lookout
    lookout.open()
    running = asyncio.ensure_future(ask(engine, 300, 64, 400))
    sight = await lookout.look()
    while not sight.blocks.owners.max() >= 0:
        sight = await lookout.look()
    (row,) = set(sight.blocks.owners[sight.blocks.owners >= 0].tolist())
    assert sight.blocks.requests[row] > 0
    block = int(np.flatnonzero(sight.blocks.owners == row)[0])
    near = await lookout.look_at(block)
    assert near is not None
    assert near.holders[0].row == row
    assert near.holders[0].request == sight.blocks.requests[row]
    running.cancel()
    lookout.close()


async def test_one_block_can_be_looked_at_while_nobody_watches(engine: AsyncEngine) -> None:
    await ask(engine, 300, 40, 1)
    sights = [await engine.lookout.look_at(block) for block in range(66)]
    assert sights[0] is sights[65] is None
    named = [sight for sight in sights if sight is not None and sight.name]
    assert [array("i", sight.tokens).tolist() for sight in named] == [list(range(300, 316)), list(range(316, 332))]


class Played:
    """A front end whose answers the test gives."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.answers: asyncio.Queue[BlockChart | Exception] = asyncio.Queue()

    async def ping(self, timeout_s: float) -> Mapping[str, Mapping[str, float]]:
        return {"scheduler": {"running": float(len(self.asked))}}

    async def ask(self, name: str, question: Question, timeout_s: float) -> object:
        assert name == "kv_manager"
        self.asked.append(question)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


def chart() -> BlockChart:
    return BlockChart(
        np.full(3, -1, dtype=np.int32),
        np.zeros(3, dtype=np.uint8),
        np.zeros(3, dtype=np.bool_),
        np.zeros(1, dtype=np.int64),
    )


def played() -> tuple[Lookout, Played, list[float], Mailbox]:
    front, now, box = Played(), [0.0], Mailbox("scheduler", 9)
    return Lookout(front, {"scheduler": box}, simulated_handshake(CONFIG), lambda: now[0]), front, now, box


async def looks(lookout: Lookout, count: int) -> list[asyncio.Future[Sight]]:
    waiting = [asyncio.ensure_future(lookout.look()) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting


async def test_however_many_look_the_actors_are_asked_once_and_seldom() -> None:
    lookout, front, now, _ = played()
    lookout.open()
    waiting = await looks(lookout, 5)
    front.answers.put_nowait(chart())
    sights = await asyncio.gather(*waiting)
    assert all(sight is sights[0] for sight in sights)
    now[0] = 0.19
    assert await lookout.look() is sights[0]
    assert front.asked == [Chart()]
    now[0] = 0.21
    front.answers.put_nowait(chart())
    assert await lookout.look() is not sights[0]
    assert len(front.asked) == 2


async def test_who_waits_for_anothers_look_looks_himself_when_that_fails_or_leaves() -> None:
    lookout, front, _, _ = played()
    lookout.open()
    first, second, third = await looks(lookout, 3)
    front.answers.put_nowait(TimeoutError("no answer"))
    with pytest.raises(TimeoutError):
        await first
    for _ in range(3):
        await asyncio.sleep(0)
    second.cancel()
    front.answers.put_nowait(chart())
    await asyncio.gather(second, return_exceptions=True)
    front.answers.put_nowait(chart())
    assert (await third).blocks.owners.tolist() == [-1, -1, -1]


async def test_mailboxes_are_watched_only_while_somebody_looks() -> None:
    lookout, front, now, box = played()
    box.bind(asyncio.get_running_loop(), lambda: None, lambda error: None)
    plain = box._wake
    lookout.open()
    lookout.open()
    assert box._wake != plain
    lookout.close()
    assert box._look is not None
    lookout.close()
    assert box._look is None
    now[0] = 0.1
    lookout.open()
    front.answers.put_nowait(chart())
    await lookout.look()
    assert len(front.asked) == 1, "nothing is remembered of an earlier watch"
    lookout.close()


async def test_those_who_look_are_bounded() -> None:
    lookout, _, _, _ = played()
    for _ in range(MOST_LOOKERS):
        lookout.open()
    with pytest.raises(RequestError) as refused:
        lookout.open()
    assert (refused.value.failure.status, refused.value.failure.code) == (429, "too_many_watchers")
    lookout.close()
    lookout.open()
