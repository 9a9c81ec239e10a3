"""The in-process API over every actor, with a toy in the executor's thread: expected tokens are its closed form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import Failure, RequestError
from asyncpage.executor.process import serve
from asyncpage.messages import Finish, LogprobEntry, RequestId, RequestOptions, TokenPrompt
from asyncpage.outputs import gather
from asyncpage.pipes.launcher import ThreadLauncher
from asyncpage.pipes.link import Link
from asyncpage.testing.toy_runner import ToyRunner, toy_handshake, toy_tokens
from asyncpage.text.byte_alphabet import CHARACTERS

VOCAB = 256
HANDSHAKE = toy_handshake(blocks=200, max_model_len=400, vocab_size=VOCAB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without weights: a token for each byte."""
    tokenizer = {
        "model": {"type": "BPE", "vocab": {text: id for id, text in enumerate(CHARACTERS)}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(model=str(folder), max_num_seqs=8, max_queue=4)
    launcher = ThreadLauncher(lambda link: serve(link, lambda load: ToyRunner(HANDSHAKE)))
    engine = await AsyncEngine.start(config, launcher=launcher)
    yield engine
    await engine.stop()


class Outcomes:
    """A sink that counts the outcomes of each request."""

    def __init__(self) -> None:
        self.finishes: list[Finish] = []
        self.refusals: list[Failure] = []
        self.changed = asyncio.Event()

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        pass

    def refused(self, request: RequestId, failure: Failure) -> None:
        self.refusals.append(failure)
        self.changed.set()

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        self.changed.set()

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        pass

    def finished(self, finish: Finish) -> None:
        self.finishes.append(finish)
        self.changed.set()

    async def change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


def submit(engine: AsyncEngine, sink: Outcomes, tokens: int = 300, n: int = 1) -> RequestId:
    prompt = TokenPrompt(np.arange(5, dtype="<i4").tobytes())
    return engine.submit(prompt, SamplingParams(max_tokens=tokens, n=n), RequestOptions(), sink)


async def test_every_choice_of_every_prompt_gets_its_own_tokens(engine: AsyncEngine) -> None:
    sampling = SamplingParams(n=3, max_tokens=20)
    prompts = [list(range(start, start + 9)) for start in (0, 40, 80)]

    async def answer(prompt: list[int]) -> list[tuple[int, ...]]:
        parts = [part async for part in engine.generate(prompt, sampling)]
        output = gather(parts, 3, has_logprobs=False, has_prompt_logprobs=False)
        assert output.prompt_tokens == 9
        return [choice.token_ids for choice in output.outputs]

    for prompt, found in zip(prompts, await asyncio.gather(*map(answer, prompts)), strict=True):
        assert found == [tuple(toy_tokens(prompt, 20, VOCAB))] * 3


async def test_the_ids_of_a_prompt_are_told_without_running_it(engine: AsyncEngine) -> None:
    ids = list(range(0, VOCAB, 3)) * 20  # more than the context
    assert list(await engine.tokenize(TokenPrompt(np.array(ids, dtype="<i4").tobytes()))) == ids
    with pytest.raises(RequestError, match="vocabulary"):
        await engine.tokenize(TokenPrompt(np.array([VOCAB], dtype="<i4").tobytes()))
    await engine.stop()
    with pytest.raises(RequestError, match="the engine is dead"):
        await engine.tokenize(TokenPrompt(b""))


async def test_leaving_the_loop_ends_the_request(engine: AsyncEngine) -> None:
    parts = engine.generate([1, 2, 3], SamplingParams(max_tokens=390))
    async for _ in parts:
        break
    await parts.aclose()  # type: ignore[attr-defined]
    assert await engine.drain(10)


async def test_a_stopped_engine_has_answered_every_request_and_takes_no_other(engine: AsyncEngine) -> None:
    running = Outcomes()
    submit(engine, running, n=2)
    await running.change()
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as refused:  # taken now, it would wait for ever
        submit(engine, Outcomes())
    assert refused.value.failure.status == 503
    await stopping
    assert [finish.failure and finish.failure.code for finish in running.finishes] == ["engine_stopped"] * 2
    assert engine.state == "dead"


async def test_a_draining_engine_finishes_what_it_took_and_refuses_the_rest(engine: AsyncEngine) -> None:
    taken, late = Outcomes(), Outcomes()
    submit(engine, taken, tokens=50)
    await taken.change()
    draining = asyncio.ensure_future(engine.drain(10))
    await asyncio.sleep(0)
    assert engine.state == "draining"
    submit(engine, late)
    assert await draining
    assert [finish.reason for finish in taken.finishes] == ["length"]
    assert [failure.status for failure in late.refusals] == [503]


async def test_an_actors_death_is_told_to_every_request_and_then_to_the_owner(engine: AsyncEngine) -> None:
    running, told = Outcomes(), asyncio.Event()
    reasons = []

    def died(reason: str) -> None:
        reasons.append((reason, len(running.finishes)))
        told.set()

    engine.on_death = died
    submit(engine, running)
    await running.change()
    engine.house.kv_manager.receive = lambda message: 1 / 0  # type: ignore[method-assign, assignment]
    await told.wait()
    ((reason, answered),) = reasons
    assert reason.startswith("the kv_manager died: ZeroDivisionError")
    assert answered == 1
    assert [finish.reason for finish in running.finishes] == ["error"]
    with pytest.raises(RequestError, match="the engine is dead"):
        submit(engine, Outcomes())


async def test_an_executor_that_has_given_up_ends_the_engine(folder: Path) -> None:
    """Nothing will ever run again, so the owner must hear of it: a supervisor of processes can start another one."""
    told = asyncio.Event()
    reasons: list[str] = []

    def died(reason: str) -> None:
        reasons.append(reason)
        told.set()

    def serve_once(link: Link) -> None:
        if link.wait(None) is not None:  # the load; a second executor never gets as far
            link.send(HANDSHAKE)
            link.wait(None)

    config = EngineConfig(model=str(folder), max_num_seqs=8, max_queue=4, max_restarts=0)
    engine = await AsyncEngine.start(config, on_death=died, launcher=ThreadLauncher(serve_once))
    running = Outcomes()
    submit(engine, running)
    while not running.finishes:
        await running.change()
    await told.wait()
    assert running.finishes[0].reason == "error"
    assert len(reasons) == 1
    assert "--max-restarts is 0" in reasons[0]
    assert engine.state == "dead"
    await engine.stop()


async def test_a_supervisor_that_ends_by_itself_leaves_nobody_waiting(engine: AsyncEngine) -> None:
    running = Outcomes()
    submit(engine, running)
    await running.change()
    engine._running.cancel()
    while not running.finishes:
        await running.change()
    assert running.finishes[0].reason == "error"
    assert engine.state == "dead"


async def test_token_ids_that_no_vocabulary_has_are_refused_by_their_place(engine: AsyncEngine) -> None:
    for wrong in (2**40, -(2**40), VOCAB, -1):
        with pytest.raises(RequestError, match=rf"token id {wrong} at index 1"):
            async for _ in engine.generate([1, wrong], SamplingParams(max_tokens=1)):
                pass
