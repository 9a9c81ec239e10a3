"""A call's requests in the engine: whatever its consumer does, whoever waits for it hears of an end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import RequestError
from asyncpage.messages import Finish, LogprobEntry, RequestOptions, TextPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.exchange import MAX_LOGPROBS, Exchange
from asyncpage.server.metrics import Metrics
from tests.server.conftest import EchoEngine


class LastWordsFail:
    """A consumer that cannot write the end of one choice."""

    def __init__(self, broken: int) -> None:
        self.broken = broken

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        pass

    def prompt_logprobs(self, index: int, entries: Sequence[LogprobEntry]) -> None:
        pass

    def finished(self, index: int, finish: Finish) -> None:
        if index == self.broken:
            raise ValueError("an end that cannot be written")


@pytest.mark.parametrize("broken", [0, 1])
async def test_a_consumer_that_fails_at_the_end_fails_the_call_instead_of_leaving_it_open(broken: int) -> None:
    engine = EchoEngine()
    engine.hold()
    call = Call("echo", (TextPrompt("ab"),), SamplingParams(n=2, max_tokens=1), RequestOptions(), Output())
    exchange = Exchange(engine, call, call.options, Metrics())
    await exchange.admit(LastWordsFail(broken))
    waiting = asyncio.ensure_future(exchange.done())
    await asyncio.sleep(0)
    for request, run in tuple(engine.runs.items()):
        if exchange.failure is None:  # as the front end does: a sink's fault is logged and harms its own call only
            try:
                run.sink.finished(Finish(request, "length", 2, 1, 0))
            except ValueError:
                engine.runs.pop(request)
    with pytest.raises(RequestError) as failed:
        await waiting
    assert failed.value.failure.code == "internal_error"
    exchange.close()
    assert [finish is None for finish in exchange.finishes] == [index >= broken for index in range(2)]


class CannotRead(LastWordsFail):
    """A consumer whose reader breaks on a text."""

    def text(self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None) -> None:
        raise LookupError("a text that cannot be read")


async def test_a_consumer_that_cannot_read_a_text_fails_the_call_instead_of_losing_it() -> None:
    engine = EchoEngine()
    engine.hold()
    call = Call("echo", (TextPrompt("ab"),), SamplingParams(max_tokens=1), RequestOptions(), Output())
    exchange = Exchange(engine, call, call.options, Metrics())
    await exchange.admit(CannotRead(-1))
    (request,) = engine.runs
    with pytest.raises(LookupError):  # the front end logs it
        exchange.text(request, "a", (97,), None)
    assert exchange.failure is not None
    with pytest.raises(RequestError) as failed:
        await exchange.done()
    assert failed.value.failure.code == "internal_error"
    assert engine.cancelled == [request]
    exchange.close()


@pytest.mark.parametrize("too_many", [0, 1])
async def test_what_a_call_may_be_told_of_its_prompts_is_bounded(too_many: int) -> None:
    engine = EchoEngine()
    engine.hold()
    engine.max_model_len = 10**8
    # 2 prompts x 4 choices x (1 chosen + 3 alternatives) = 32 numbers a token
    tokens = MAX_LOGPROBS // 32
    prompts = (TextPrompt("a" * tokens), TextPrompt("b" * (tokens + too_many)))
    sampling = SamplingParams(n=4, max_tokens=1, prompt_logprobs=3)
    call = Call("echo", prompts, sampling, RequestOptions(), Output(prompt_logprobs=3))
    exchange = Exchange(engine, call, call.options, Metrics())
    if too_many:
        with pytest.raises(RequestError) as refused:
            await exchange.admit(LastWordsFail(0))
        assert (refused.value.failure.status, refused.value.failure.param) == (400, "prompt_logprobs")
        assert str(MAX_LOGPROBS) in refused.value.failure.message
        assert len(engine.cancelled) == 8
    else:
        await exchange.admit(LastWordsFail(0))
        assert len(engine.runs) == 8
        exchange.close()


@pytest.mark.parametrize(("stream", "too_many"), [(False, 0), (False, 1), (True, 1)])
async def test_logprobs_that_wait_for_a_whole_answer_are_bounded_and_streamed_ones_need_not_be(
    stream: bool, too_many: int
) -> None:
    engine = EchoEngine()
    engine.hold()
    sampling = SamplingParams(max_tokens=10, logprobs=3)
    call = Call("echo", (TextPrompt("a"),), sampling, RequestOptions(), Output(stream=stream, logprobs=3))
    exchange = Exchange(engine, call, call.options, Metrics())
    await exchange.admit(LastWordsFail(-1))
    ((request, run),) = engine.runs.items()
    entry = (97, -1.0, 1)
    # the chosen one and 3 alternatives: 4 numbers a token
    run.sink.text(request, "", (), (entry,) * (MAX_LOGPROBS // 4))
    assert exchange.failure is None
    run.sink.text(request, "", (), (entry,) * too_many)
    if stream or not too_many:
        assert exchange.failure is None
    else:
        assert exchange.failure is not None
        assert (exchange.failure.status, exchange.failure.param) == (400, "logprobs")
        assert "max_tokens" in exchange.failure.message
        assert engine.cancelled == [request]
    exchange.close()


class KnowsItsExchange(LastWordsFail):
    """As the writers of streams do."""

    exchange: Exchange | None = None


async def test_what_a_consumer_holds_goes_with_its_call_and_not_when_the_collector_comes() -> None:
    engine = EchoEngine()
    engine.hold()
    call = Call("echo", (TextPrompt("ab"),), SamplingParams(max_tokens=1), RequestOptions(), Output())
    exchange = Exchange(engine, call, call.options, Metrics())
    consumer = KnowsItsExchange(-1)
    consumer.exchange = exchange
    await exchange.admit(consumer)
    there = weakref.ref(consumer)
    gc.disable()
    try:
        del consumer
        assert there() is not None
        exchange.close()
        assert there() is None
    finally:
        gc.enable()
