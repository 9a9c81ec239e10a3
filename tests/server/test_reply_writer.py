"""The streaming consumer of a reply: what must wait is told later, in fewer events, and nothing is told twice."""

import asyncio
import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure
from asyncpage.messages import ChatPrompt, Finish, RequestId, RequestOptions
from asyncpage.server.anthropic.wording import MessageWording
from asyncpage.server.call import Call, Output
from asyncpage.server.generate.reply_writer import ReplyCollector, ReplyWriter
from asyncpage.server.generate.shape import Head
from asyncpage.server.responses.wording import ResponseWording

WORDINGS = (MessageWording, ResponseWording)


class Line:
    """A stream, an exchange and a pace, as a writer sees them; the test says when there is room."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.prompt_tokens = [7]
        self.failure: Failure | None = None
        self.is_over = False
        self.is_full = False
        self.is_lagging = False
        self.sent: list[bytes] = []
        self.held: list[int] = []
        self.allowed = 0
        self.waiting = 0

    def send(self, events: bytes) -> None:
        assert not self.is_full
        self.sent.append(events)

    def allow(self, size: int) -> None:
        self.allowed += size

    def check_held(self, held: int) -> None:
        self.held.append(held)

    def hold(self, writer: object) -> None:
        self.waiting += 1

    def wrote(self) -> None:
        pass

    def fail(self, failure: Failure) -> None:
        self.failure, self.is_over = failure, True


def finish(reason: Any = "stop") -> Finish:
    return Finish(RequestId(1), reason, 7, 5, 0)


@pytest.fixture(scope="session")
def make(mark_reader):
    def made(wording: Any, table: Any = None, logprobs: int | None = None) -> tuple[ReplyWriter, Line]:
        call = Call(
            "m",
            (ChatPrompt(()),),
            SamplingParams(logprobs=logprobs),
            RequestOptions(),
            Output(stream=True, logprobs=logprobs),
            new_reader=mark_reader,
        )
        line: Any = Line(call)
        return ReplyWriter(line, line, wording(call, Head("x_1", 1, "m"), table), line), line

    return made


def joined(events: bytes) -> tuple[list[str], list[str]]:
    """The kinds of the events without repetitions, and every block's text as its deltas tell it."""
    kinds: list[str] = []
    texts: dict[int, str] = {}
    for event in events.decode("ascii").split("\n\n")[:-1]:
        name, data = event.split("\n")
        body = json.loads(data.removeprefix("data: "))
        if kinds[-1:] != [name]:
            kinds.append(name)
        delta = body.get("delta")
        if isinstance(delta, dict):
            delta = next((delta[key] for key in ("text", "thinking", "partial_json") if key in delta), None)
        if delta is not None:
            place = body.get("output_index", body.get("index"))
            texts[place] = texts.get(place, "") + delta
    return kinds, list(texts.values())


@pytest.mark.parametrize("wording", WORDINGS)
@given(
    pieces=st.lists(st.sampled_from(["a", "bé", "\1t\2", "\3f\4{}\5", "\3f\4", "{", "}\5"]), max_size=12),
    room=st.lists(st.sampled_from(["full", "lagging", "free", "flush"]), min_size=12, max_size=12),
)
def test_what_waits_is_told_whole_and_in_order(make, wording, pieces, room) -> None:
    writer, line = make(wording)
    plain, free = make(wording)
    for piece, state in zip(pieces, room, strict=False):
        line.is_full, line.is_lagging = state == "full", state == "lagging"
        writer.text(0, piece, (1,), None)
        if state == "flush":
            writer.flush()
        plain.text(0, piece, (1,), None)
    for each in (writer, plain):
        each.finished(0, finish())
    line.is_full = False
    told = joined(b"".join(line.sent) + writer.last_events())
    assert told == joined(b"".join(free.sent) + plain.last_events())
    assert len(line.sent) <= len(free.sent) + 1


@pytest.mark.parametrize("wording", WORDINGS)
def test_the_beginning_is_told_when_the_stream_opens_and_once(make, wording) -> None:
    writer, line = make(wording)
    line.is_full = True  # as it is until the headers are out
    writer.text(0, "a", (1,), None)
    assert line.sent == []
    line.is_full = False
    writer.flush()
    writer.flush()
    (first,) = line.sent
    assert first.count(b"_start\n" if wording is MessageWording else b"response.created\n") == (
        2 if wording is MessageWording else 1  # of the message, and of its first block
    )
    silent, line = make(wording)
    silent.flush()
    silent.flush()
    assert len(line.sent) == 1


def test_text_that_waits_is_counted_and_handed_to_the_pace(make) -> None:
    writer, line = make(MessageWording)
    writer.flush()
    line.is_lagging = True
    for piece in ("ab", "cde"):
        writer.text(0, piece, (1,), None)
    line.is_lagging = False
    writer.text(0, "f", (1,), None)  # not past what waits
    assert (line.held, line.waiting, len(line.sent)) == ([2, 5, 6], 3, 1)
    line.is_full = True
    writer.flush()
    assert (line.waiting, len(line.sent)) == (4, 1)
    line.is_full = False
    writer.flush()
    assert line.sent[1].count(b"content_block_delta\n") == 1
    assert b'"text":"abcdef"' in line.sent[1]
    writer.text(0, "g", (1,), None)
    assert b'"text":"g"' in line.sent[2]


def test_what_tells_a_whole_block_again_is_not_held_against_the_reader(make) -> None:
    writer, line = make(ResponseWording)
    writer.text(0, "x" * 1000, (1,), None)
    assert line.allowed == 0
    writer.text(0, "\3f\4", (1,), None)
    assert line.allowed > 3000


@pytest.mark.parametrize("wording", WORDINGS)
def test_a_reader_that_breaks_in_a_flush_fails_its_own_call(make, wording, monkeypatch) -> None:
    def broken(self: object, change: object) -> bytes:
        raise LookupError("inner detail")

    writer, line = make(wording)
    line.is_full = True
    writer.text(0, "a", (1,), None)
    line.is_full = False
    monkeypatch.setattr(wording, "tell", broken)
    writer.flush()
    assert line.failure is not None
    assert line.failure.status == 500
    last = writer.last_events()
    assert b"inner" not in last
    assert b"event: error\n" in last


async def test_the_collected_answer_is_made_of_the_same_blocks(make) -> None:
    _, line = make(MessageWording)
    collector = ReplyCollector(line.call, MessageWording(line.call, Head("x_1", 1, "m"), None))  # type: ignore[arg-type]
    for piece in ("a", "\3f\4{", '"b": 1}\5'):
        collector.text(0, piece, (1,), None)
    collector.finished(0, finish())
    body = json.loads(await collector.answer())
    assert [(block["type"], block.get("text"), block.get("input")) for block in body["content"]] == [
        ("text", "a", None),
        ("tool_use", None, {"b": 1}),
    ]


async def slow_stream(site, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client with small buffers that has read no more than the headers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()
    return reader, writer


async def test_a_client_that_does_not_read_is_cut(serve) -> None:
    site = await serve(max_buffered_bytes=100_000)
    site.engine.max_model_len = 10**8
    site.engine.hold()
    asked = {"stream": True, "messages": [{"role": "user", "content": "p"}], "max_tokens": 10**6}
    _, writer = await slow_stream(site, "/v1/messages", asked)
    (run,) = site.engine.runs.values()
    run.output = [122] * 10**6
    while run.request in site.engine.runs:
        site.engine.step()
    assert site.engine.cancelled == [run.request]
    assert run.done < 500_000
    writer.close()


async def test_a_slow_reader_gets_a_whole_response_that_is_told_four_times_at_its_end(serve) -> None:
    site = await serve(max_buffered_bytes=130_000)
    site.engine.max_model_len = 10**8
    site.engine.hold()
    reader, writer = await slow_stream(site, "/v1/responses", {"stream": True, "input": "p"})
    (run,) = site.engine.runs.values()
    run.output = [*(97 + n % 26 for n in range(50_000)), 256]
    while site.engine.runs:
        site.engine.step()
    assert not site.engine.cancelled
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    writer.transport.resume_reading()
    received = bytearray()
    while not received.endswith(b"\r\n0\r\n\r\n"):
        received += await reader.read(65536)
    assert received.count(b"event: response.completed") == 1
    assert received.count(bytes(run.output[:50])) >= 4
    writer.close()
