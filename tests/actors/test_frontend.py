"""The front end's promise to sinks: one outcome each, whatever comes in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from asyncpage.actors.base import ActorCell
from asyncpage.actors.frontend import Frontend
from asyncpage.clock import SystemClock
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, MailboxFull, RequestError
from asyncpage.messages import (
    FRONTEND_SHIFT,
    Accepted,
    Cancel,
    Encode,
    Encoded,
    Finish,
    LogprobEntry,
    Logprobs,
    Ping,
    Pong,
    PromptLogprobs,
    Refused,
    RequestId,
    RequestOptions,
    TextPrompt,
    Texts,
    Tokenize,
    frontend_of,
)
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.testing.house import Inbox


class Recorder:
    """A sink that writes down what it hears; told to, it raises at the first text."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.heard: list[tuple[str, RequestId, object]] = []
        self.told: list[list[LogprobEntry] | None] = []  # with each text
        self.breaks = breaks

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        self.heard.append(("accepted", request, prompt_tokens))

    def refused(self, request: RequestId, failure: Failure) -> None:
        self.heard.append(("refused", request, failure))

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        if self.breaks:
            raise ValueError("this sink is broken")
        self.heard.append(("text", request, (text, list(token_ids))))
        self.told.append(None if logprobs is None else list(logprobs))

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        self.heard.append(("prompt_logprobs", request, entries))

    def finished(self, finish: Finish) -> None:
        self.heard.append(("finished", finish.request, finish.reason))


def make(index: int = 0, most_open: int = 10) -> tuple[Frontend, Inbox]:
    tokenizer = Inbox()
    return Frontend(index, most_open, tokenizer, {}), tokenizer


def open_one(frontend: Frontend, sink: Recorder, n: int = 1) -> RequestId:
    return frontend.open(TextPrompt("a"), SamplingParams(n=n), RequestOptions(), sink)


def texts(*requests: RequestId, finishes: tuple[Finish, ...] = ()) -> Texts:
    return Texts(
        requests=requests,
        texts=tuple(f"t{request}" for request in requests),
        counts=np.arange(1, len(requests) + 1, dtype=np.int32),
        token_ids=np.arange(sum(range(len(requests) + 1)), dtype=np.int32),
        finishes=finishes,
    )


def finish(request: RequestId) -> Finish:
    return Finish(request, "length", 1, 1, 0)


def test_ids_are_consecutive_and_name_their_front_end() -> None:
    frontend, tokenizer = make(index=3)
    first, second = open_one(frontend, Recorder(), n=3), open_one(frontend, Recorder())
    assert second == first + 3
    assert frontend_of(first) == frontend_of(second) == 3
    assert first >> FRONTEND_SHIFT == 3
    assert [type(message) for message in tokenizer.messages] == [Tokenize, Tokenize]


def test_columns_are_cut_request_by_request_and_the_finish_comes_last() -> None:
    frontend, _ = make()
    sink = Recorder()
    a, b = open_one(frontend, sink), open_one(frontend, sink)
    frontend.receive(Accepted(a, 5))
    frontend.receive(texts(a, b, finishes=(finish(b),)))
    assert sink.heard == [
        ("accepted", a, 5),
        ("text", a, (f"t{a}", [0])),
        ("text", b, (f"t{b}", [1, 2])),
        ("finished", b, "length"),
    ]


def columns(tokens: int, width: int) -> Logprobs:
    """The n-th token has log-probability -n and rank 10 + n; its k-th alternative is id 100 n + k at -n - k / 4."""
    n, k = np.arange(tokens, dtype=np.int32), np.arange(width, dtype=np.int32)
    return Logprobs(
        token_logprobs=-n.astype(np.float32),
        ranks=10 + n,
        top_ids=100 * n[:, None] + k,
        top_logprobs=-n[:, None].astype(np.float32) - k.astype(np.float32) / 4,
    )


@pytest.mark.parametrize("wishes", [(2, 2), (2, 0), (None, 2), (1, 5)])
@pytest.mark.parametrize("counts", [(1, 1), (2, 1)])
def test_each_request_hears_the_entries_that_it_asked_for(
    wishes: tuple[int | None, int | None], counts: tuple[int, int]
) -> None:
    frontend, _ = make()
    sinks = [Recorder(), Recorder()]
    requests = tuple(
        frontend.open(TextPrompt("a"), SamplingParams(logprobs=most), RequestOptions(), sink)
        for most, sink in zip(wishes, sinks, strict=True)
    )
    width = max(most for most in wishes if most is not None)
    ids = np.arange(7, 7 + sum(counts), dtype=np.int32)
    told = Texts(requests, ("a", "b"), np.array(counts, dtype=np.int32), ids, columns(sum(counts), width))
    frontend.receive(told)
    frontend.receive(texts(*requests))
    place = 0
    for most, count, sink in zip(wishes, counts, sinks, strict=True):
        expected = [
            (7 + n, -n, 10 + n, *(100 * n + k for k in range(most or 0)), *(-n - k / 4 for k in range(most or 0)))
            for n in range(place, place + count)
        ]
        assert sink.told == [None if most is None else expected, None]
        place += count


def test_a_prompts_first_entry_has_no_number() -> None:
    frontend, _ = make()
    sink = Recorder()
    a = open_one(frontend, sink)
    first = PromptLogprobs(-1, 0, np.array([5], dtype=np.int32), columns(0, 0))
    more = PromptLogprobs(3, 1, np.array([6, 7], dtype=np.int32), columns(2, 1))
    none = np.empty(0, dtype=np.int32)
    frontend.receive(Texts((), (), none, none, prompt_logprobs=((a, first), (a, more))))
    assert sink.heard == [
        ("prompt_logprobs", a, [(5, None, 0)]),
        ("prompt_logprobs", a, [(6, 0.0, 10, 0, 0.0), (7, -1.0, 11, 100, -1.0)]),
    ]


def test_nothing_is_heard_after_an_outcome() -> None:
    frontend, _ = make()
    sink = Recorder()
    a, b = open_one(frontend, sink), open_one(frontend, sink)
    frontend.receive(Refused(a, Failure(400, "no")))
    frontend.receive(texts(b, finishes=(finish(b),)))
    heard = len(sink.heard)
    frontend.receive(Accepted(a, 1))
    frontend.receive(Refused(a, Failure(400, "no")))
    frontend.receive(texts(a, b, finishes=(finish(a), finish(b))))
    assert len(sink.heard) == heard
    assert len(frontend) == 0


def test_a_cancelled_request_still_has_its_outcome() -> None:
    frontend, tokenizer = make()
    sink = Recorder()
    a = open_one(frontend, sink)
    frontend.cancel(a)
    assert tokenizer.messages[-1] == Cancel(a)
    frontend.receive(texts(finishes=(Finish(a, "abort", 1, 0, 0),)))
    assert sink.heard == [("finished", a, "abort")]
    frontend.cancel(a)
    assert len(tokenizer.messages) == 2


def test_a_request_is_cancelled_once_however_often_it_is_asked_for() -> None:
    frontend, tokenizer = make()
    broken = Recorder(breaks=True)
    a = open_one(frontend, broken)
    for _ in range(3):
        frontend.receive(texts(a))
        frontend.cancel(a)
    assert [type(message) for message in tokenizer.messages] == [Tokenize, Cancel]
    frontend.receive(texts(finishes=(finish(a),)))
    assert broken.heard == [("finished", a, "length")]


def test_a_broken_sink_harms_its_own_request_only() -> None:
    frontend, tokenizer = make()
    broken, sound = Recorder(breaks=True), Recorder()
    a, b = open_one(frontend, broken), open_one(frontend, sound)
    frontend.receive(texts(a, b))
    assert tokenizer.messages[-1] == Cancel(a)
    assert [kind for kind, _, _ in sound.heard] == ["text"]


def test_more_open_requests_than_allowed_are_refused_before_anything_is_sent() -> None:
    frontend, tokenizer = make(most_open=3)
    open_one(frontend, Recorder(), n=2)
    with pytest.raises(RequestError) as refused:
        open_one(frontend, Recorder(), n=2)
    assert refused.value.failure.status == 429
    assert "front end" in refused.value.failure.message
    assert len(tokenizer.messages) == 1
    open_one(frontend, Recorder())


def test_more_choices_than_can_ever_be_open_are_refused_for_good() -> None:
    frontend, tokenizer = make(most_open=3)
    with pytest.raises(RequestError) as refused:
        open_one(frontend, Recorder(), n=4)
    assert (refused.value.failure.status, refused.value.failure.param) == (400, "n")
    assert not tokenizer.messages


def test_a_request_that_could_not_be_sent_is_not_open() -> None:
    full = Mailbox("tokenizer", 1)
    frontend = Frontend(0, 10, full, {})
    sink = Recorder()
    open_one(frontend, sink)
    with pytest.raises(MailboxFull):
        open_one(frontend, sink)
    assert len(frontend) == 1
    frontend.fail_all(Failure(500, "an actor died"))
    assert [kind for kind, _, _ in sink.heard] == ["finished"]


def test_when_the_house_falls_every_open_request_is_told() -> None:
    frontend, _ = make()
    sink = Recorder()
    a, b = open_one(frontend, sink, n=2), RequestId(2)
    frontend.fail_all(Failure(500, "an actor died"))
    assert sink.heard == [("finished", a, "error"), ("finished", b, "error")]
    frontend.fail_all(Failure(500, "an actor died"))
    assert len(sink.heard) == 2


async def test_a_ping_gathers_every_actors_stats_and_names_those_that_are_silent() -> None:
    box = Mailbox("frontend", 100)
    silent = Inbox()
    frontend = Frontend(0, 10, Inbox(), {"frontend": box, "kv_manager": silent})
    cell = ActorCell(frontend, box, SystemClock(), [box])
    running = asyncio.ensure_future(cell.run())
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match="from: kv_manager"):
        await frontend.ping(0.01)
    answers = asyncio.ensure_future(frontend.ping(10))
    await asyncio.sleep(0)
    token = silent.messages[-1].token  # type: ignore[attr-defined]
    box.send(Pong(token, "kv_manager", {"blocks_total": 7.0}))
    assert await answers == {"frontend": {"open_requests": 0}, "kv_manager": {"blocks_total": 7.0}}
    cell.stop()
    await running


async def test_callers_that_ask_at_once_share_one_ping_and_each_keeps_its_own_patience() -> None:
    actor = Inbox()
    frontend = Frontend(0, 10, Inbox(), {"kv_manager": actor})
    patient = [asyncio.ensure_future(frontend.ping(10)) for _ in range(500)]
    left = asyncio.ensure_future(frontend.ping(10))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(TimeoutError, match="kv_manager"):
        await frontend.ping(0.001)
    (ping,) = actor.messages
    assert isinstance(ping, Ping)
    frontend.receive(Pong(ping.token, "kv_manager", {"blocks_total": 7.0}))
    assert await asyncio.gather(*patient) == [{"kv_manager": {"blocks_total": 7.0}}] * 500


async def test_a_ping_that_was_never_answered_is_not_waited_for_again() -> None:
    actor = Inbox()
    frontend = Frontend(0, 10, Inbox(), {"kv_manager": actor})
    with pytest.raises(TimeoutError):
        await frontend.ping(0.001)
    asking = asyncio.ensure_future(frontend.ping(10))
    await asyncio.sleep(0)
    _, ping = actor.messages
    assert isinstance(ping, Ping)
    frontend.receive(Pong(ping.token, "kv_manager", {}))
    assert await asking == {"kv_manager": {}}


async def test_waiting_for_all_to_close_ends_with_the_last_outcome() -> None:
    frontend, _ = make()
    await frontend.wait_closed()
    sink = Recorder()
    a = open_one(frontend, sink)
    waiting = asyncio.ensure_future(frontend.wait_closed())
    await asyncio.sleep(0)
    assert not waiting.done()
    frontend.receive(texts(finishes=(finish(a),)))
    await waiting


async def test_ids_that_were_asked_for_come_to_whom_they_are_meant_for() -> None:
    frontend, tokenizer = make()
    first = asyncio.ensure_future(frontend.encode(TextPrompt("a")))
    second = asyncio.ensure_future(frontend.encode(TextPrompt("b")))
    third = asyncio.ensure_future(frontend.encode(TextPrompt("c")))
    await asyncio.sleep(0)
    a, b, c = tokenizer.messages
    assert isinstance(a, Encode)
    assert isinstance(b, Encode)
    assert isinstance(c, Encode)
    assert (a.prompt, b.prompt) == (TextPrompt("a"), TextPrompt("b"))
    frontend.receive(Encoded(b.request, b"bbbb"))
    frontend.receive(Refused(c.request, Failure(400, "no")))
    frontend.receive(Encoded(a.request, b"aaaa"))
    assert (await first, await second) == (b"aaaa", b"bbbb")
    with pytest.raises(RequestError, match="no"):
        await third
    assert len(tokenizer.messages) == 3


async def test_who_leaves_before_the_ids_come_is_not_worked_for_and_keeps_its_place_until_then() -> None:
    frontend, tokenizer = make(most_open=2)
    open_one(frontend, Recorder())
    asking = asyncio.ensure_future(frontend.encode(TextPrompt("a")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    _, asked, cancel = tokenizer.messages
    assert isinstance(asked, Encode)
    assert cancel == Cancel(asked.request)
    with pytest.raises(RequestError) as refused:
        await frontend.encode(TextPrompt("b"))
    assert refused.value.failure.status == 429
    frontend.receive(Refused(asked.request, Failure(499, "left")))
    open_one(frontend, Recorder())


async def test_when_the_house_falls_no_ids_are_waited_for() -> None:
    frontend, _ = make()
    asking = asyncio.ensure_future(frontend.encode(TextPrompt("a")))
    await asyncio.sleep(0)
    frontend.fail_all(Failure(500, "an actor died"))
    with pytest.raises(RequestError, match="an actor died"):
        await asking
