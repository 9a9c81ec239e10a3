"""An engine that computes without a model: it answers with the prompt's own text, one byte a token."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import pytest
import structlog

from asyncpage.actors.frontend import Sink
from asyncpage.adapters.shelf import AdapterShelf
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.lookout import Lookout
from asyncpage.messages import (
    ChatPrompt,
    Constraint,
    Finish,
    FinishReason,
    LogprobEntry,
    LookAt,
    Pooling,
    Prompt,
    Question,
    RequestId,
    RequestOptions,
    TextPrompt,
    TokenPrompt,
)
from asyncpage.server.config import ServerConfig
from asyncpage.server.fields import Fields
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.reply_plan import ReplyPlan
from asyncpage.server.generate.tool_use import ToolUse
from asyncpage.server.http_server import HttpServer
from asyncpage.simulation.stand_in import simulated_handshake
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.reasoning.think import DeepSeekR1
from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, ReasoningPart, ReplyPart
from asyncpage.text.tools.hermes import Hermes
from asyncpage.text.tools.parser import ToolParser
from asyncpage.text.tools.tool import Tool

EOS = 256
VOCAB = 257


@dataclass
class Run:
    request: RequestId
    prompt: bytes
    output: list[int]
    sampling: SamplingParams
    options: RequestOptions
    sink: Sink
    cached: int
    done: int = 0
    sent: int = 0  # characters
    text: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class Letters:
    """What the tokens look like."""

    def token_text(self, id: int) -> str:
        return self.token_bytes(id).decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if 0 <= id < EOS else b""

    def whole_text(self, data: bytes) -> str:
        return data.decode(errors="replace")


class EchoEngine:
    """Token b is byte b, token 256 ends. Choice i of n echoes the prompt turned left by i bytes.

    The token after b's logprob is -(1 + b % 4) / 4; its j-th alternative is token b + j (mod 256), j / 2 lower.
    """

    def __init__(self) -> None:
        self.on_death: Callable[[str], None] = lambda reason: None
        self.state = "ready"
        self.model_names: tuple[str, ...] = ("echo", "org/alias")
        simulated = simulated_handshake(EngineConfig(num_kv_blocks=5))
        self.adapters = AdapterShelf(EngineConfig(), self.model_names, simulated)
        self.fingerprint = "fp_echo"
        self.vocab_size = VOCAB
        self.tokens = Letters()
        self.tokenizer_info: dict[str, object] = {"bos_token": None, "eos_token": "<end>", "chat_template": "{{ 1 }}"}
        self.max_model_len = 512
        self.has_chat_template = True
        self.is_generative = True
        self.pooling: Pooling | None = Pooling("last")
        self.hidden_size = 4
        self.tool_parser: ToolParser | None = Hermes("")
        self.reasoning_parser: ReasoningParser | None = DeepSeekR1("")
        self.end_of_prompt = ""
        self.sampling_defaults: dict[str, Any] = {}
        self.max_queue = 10**6
        self.max_requests = 10**6
        self.is_hung = False
        self.compiling = 0
        self.submitted: list[tuple[Prompt, SamplingParams, RequestOptions]] = []
        self.tokenized: list[Prompt] = []
        self.cancelled: list[RequestId] = []
        self.lookout = Lookout(self, {}, simulated, self.now)
        self.runs: dict[RequestId, Run] = {}
        self._is_held = False
        self._next = 1
        self._seen: set[bytes] = set()
        self._changed = asyncio.Event()
        self._is_turning = False
        self._prompt_tokens = 0
        self._cached_tokens = 0

    # --- the engine's interface --------------------------------------------------------------------------------------

    def prompt_end(self, prompt: ChatPrompt) -> str:
        return self.end_of_prompt

    def submit(self, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink) -> RequestId:
        first = RequestId(self._next)
        self._next += sampling.n
        self.submitted.append((prompt, sampling, options))
        asyncio.get_running_loop().call_soon(self._admit, first, prompt, sampling, options, sink)
        return first

    async def compile_grammar(self, source: GrammarSource) -> Constraint:
        """Compiles nothing, refuses what says so, and never ends for what says that."""
        if source.text == "for ever":
            self.compiling += 1
            self._changed.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.compiling -= 1
                self._changed.set()
        if source.text == "refused":
            raise RequestError("it cannot be", param="properties.a", code="unsupported")
        return Constraint(source.kind.encode(), source.text.encode())

    def cancel(self, request: RequestId) -> None:
        if self.runs.pop(request, None) is not None:
            self.cancelled.append(request)
        self._changed.set()

    async def tokenize(self, prompt: Prompt) -> Sequence[int]:
        self.tokenized.append(prompt)
        return tuple(_encode(prompt)[0])

    async def ask(self, name: str, question: Question, timeout_s: float) -> object:
        """Has no blocks to tell of."""
        if isinstance(question, LookAt):
            return None
        raise RequestError("there are no blocks here to draw", status=503, retry_after_s=1.0)

    async def ping(self, timeout_s: float) -> Mapping[str, Mapping[str, float]]:
        if self.is_hung:
            raise TimeoutError("scheduler")
        used = len(self.runs)
        return {
            "scheduler": {
                "running": float(used),
                "waiting": 0.0,
                "preemptions": 3.0,
                "prompt_tokens": float(self._prompt_tokens),
                "cached_tokens": float(self._cached_tokens),
            },
            "kv_manager": {
                "blocks_total": 10.0,
                "blocks_blank": 6.0 - used,
                "blocks_cached": 4.0,
                "blocks_referenced": float(used),
            },
        }

    async def reset_prefix_cache(self) -> int:
        self._seen.clear()
        return 0

    async def why(self, label: str) -> Mapping[str, object] | None:
        return None

    async def drain(self, timeout_s: float) -> bool:
        self.state = "draining"
        self._changed.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self.until(lambda: not self.runs)
        except TimeoutError:
            return False
        return True

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return 1_700_000_000.5

    # --- the test's interface ----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Accept requests, but compute nothing until `step` or `release`."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        self._start_turning()

    def step(self) -> None:
        """Every running request makes one token."""
        for run in tuple(self.runs.values()):
            self._advance(run)
        self._changed.set()

    def fail_all(self, failure: Failure) -> None:
        for run in tuple(self.runs.values()):
            self._finish(run, "error", failure=failure)

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait for something that changes with the engine's requests."""
        while not is_true():
            self._changed.clear()
            await self._changed.wait()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _admit(
        self, first: RequestId, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink
    ) -> None:
        requests = [RequestId(first + choice) for choice in range(sampling.n)]
        tokens, source = _encode(prompt)
        if options.truncate_prompt_tokens is not None:
            tokens = source = tokens[-options.truncate_prompt_tokens :]
        failure = None
        if len(self.runs) + sampling.n > self.max_queue:
            failure = Failure(429, "the waiting queue of the scheduler is full", "queue_full", None, 2.4)
        elif len(tokens) >= self.max_model_len + (options.pooling is not None):
            text = f"the prompt has {len(tokens)} tokens, the context {self.max_model_len}"
            failure = Failure(400, text, "context_length_exceeded", "prompt")
        if failure is not None:
            for request in requests:
                sink.refused(request, failure)
            return
        cached = (len(tokens) - 1) // 16 * 16 if tokens in self._seen else 0
        self._seen.add(tokens)
        self._prompt_tokens += len(tokens)
        self._cached_tokens += cached
        for choice, request in enumerate(requests):
            turn = choice % max(1, len(source))
            output = [*source[turn:], *source[:turn], EOS]
            run = Run(request, tokens, output, sampling, options, sink, cached)
            self.runs[request] = run
            sink.accepted(request, len(tokens))
            if options.deadline is not None:
                asyncio.get_running_loop().call_at(options.deadline, self._expire, request)
        self._changed.set()
        self._start_turning()

    def _start_turning(self) -> None:
        if not self._is_held and not self._is_turning and self.runs:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        if not self._is_held:
            self.step()
            self._start_turning()

    def _expire(self, request: RequestId) -> None:
        run = self.runs.get(request)
        if run is not None:
            self._finish(run, "error", failure=Failure(504, "the deadline has passed", "timeout"))

    def _advance(self, run: Run) -> None:
        sampling = run.sampling
        if run.done == 0:
            if sampling.prompt_logprobs is not None:
                entries = tuple(
                    _entry(token, sampling.prompt_logprobs, is_first=place == 0)
                    for place, token in enumerate(run.prompt)
                )
                run.sink.prompt_logprobs(run.request, entries)
            if run.options.echo:
                run.sink.text(run.request, run.prompt.decode(errors="replace"), (), None)
        if run.options.pooling is not None:
            vector = [len(run.prompt), run.prompt[0], run.prompt[-1], 0.1 if run.options.pooling.is_normalized else 7]
            self._finish(run, "stop", embedding=np.array(vector, dtype="<f4").tobytes())
            return
        room = self.max_model_len - len(run.prompt)
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        if run.done >= limit:
            self._finish(run, "length")
            return
        token = run.output[min(run.done, len(run.output) - 1)]
        run.done += 1
        entries = None if sampling.logprobs is None else (_entry(token, sampling.logprobs),)
        is_last = run.done >= limit
        text = "" if token == EOS else run.decoder.decode(bytes([token]))
        if token == EOS or is_last:
            text += run.decoder.decode(b"", final=True)
        stop = None
        if sampling.stop:  # what could still begin a stop string is held back
            run.text += text
            stop = next((s for s in sampling.stop if s in run.text), None)
            held = 0 if token == EOS or is_last else max(map(len, sampling.stop)) - 1
            shown = run.text[: len(run.text) - held] if stop is None else run.text.partition(stop)[0]
            text = shown[run.sent :]
        if self.runs.get(run.request) is run:
            run.sent += len(text)
            run.sink.text(run.request, text, (token,), entries)
        if stop is not None:
            self._finish(run, "stop", stop_reason=stop)
        elif token == EOS:
            self._finish(run, "stop")
        elif is_last:
            self._finish(run, "length")

    def _finish(
        self,
        run: Run,
        reason: FinishReason,
        *,
        stop_reason: str | None = None,
        failure: Failure | None = None,
        embedding: bytes = b"",
    ) -> None:
        if self.runs.pop(run.request, None) is run:
            counts = (len(run.prompt), run.done, run.cached)
            run.sink.finished(Finish(run.request, reason, *counts, stop_reason, failure, embedding))
        self._changed.set()


def _encode(prompt: Prompt) -> tuple[bytes, bytes]:
    match prompt:
        case TextPrompt(text=text):
            return text.encode(), text.encode()
        case TokenPrompt(tokens=tokens):
            ids = bytes(np.frombuffer(tokens, dtype="<i4").astype(np.uint8))
            return ids, ids
        case ChatPrompt(messages=messages):
            rendered = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return rendered.encode(), messages[-1]["content"].encode()


def _entry(token: int, most: int, *, is_first: bool = False) -> LogprobEntry:
    if is_first:
        return (token, None, 0)
    logprob = -(1 + token % 4) / 4
    others = [(token + j) % 256 for j in range(most)]
    if token == EOS and others:
        others[0] = EOS
    return (token, logprob, 1, *others, *(logprob - j / 2 for j in range(most)))


@dataclass
class Got:
    """An answer that has been read."""

    status: int
    headers: Mapping[str, str]  # by any case
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Site:
    """A server on a real socket, and the calls that tests make to it."""

    engine: EchoEngine
    server: HttpServer
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer; `body` is sent as it is when it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, method: str = "GET", **headers: str) -> Got:
        async with self.session.request(method, self.url + path, headers=headers) as answer:
            return Got(answer.status, answer.headers, await answer.text(errors="replace"))  # fonts are no text

    async def complete(self, **fields: Any) -> dict[str, Any]:
        status, body = await self.post("/v1/completions", fields)
        assert status == 200, body
        return body

    async def chat(self, content: str = "hello", **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        status, body = await self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert status == 200, body
        return body

    async def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """Every chunk of a stream that must end with [DONE]."""
        async with self.session.post(self.url + path, json={**fields, "stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            return chunks(await answer.read())

    async def events(self, path: str, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
        """Every event of a stream of named ones: its name and its data."""
        async with self.session.post(self.url + path, json={**fields, "stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            return named(await answer.read())

    @staticmethod
    def named(body: bytes) -> list[tuple[str, dict[str, Any]]]:
        return named(body)

    async def raw(self, text: str | bytes) -> bytes:
        """What comes back for these bytes until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(text.encode() if isinstance(text, str) else text)
        answer = await reader.read()
        writer.close()
        return answer


def chunks(body: bytes) -> list[dict[str, Any]]:
    events = body.decode().split("\n\n")
    assert events.pop() == ""
    events = [event for event in events if not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event and "\r" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    assert "data: [DONE]" not in events
    return [json.loads(event[6:]) for event in events]


def named(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream that names them: one line of name and one of data each, and no end mark."""
    events = body.decode("ascii").split("\n\n")
    assert events.pop() == ""
    found = []
    for event in events:
        if not event.startswith(":"):
            first, second = event.split("\n")
            found.append((first.removeprefix("event: "), json.loads(second.removeprefix("data: "))))
            assert (first, second.partition("{")[0]) == (f"event: {found[-1][0]}", "data: ")
            assert found[-1][1]["type"] == found[-1][0]
    return found


class MarkReader:
    """Reads "\1thought\2" as reasoning and "\3name\4arguments\5" as a call, the rest as content."""

    def __init__(self) -> None:
        self._where = "content"
        self._name = ""
        self._calls = 0

    def feed(self, text: str) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        for letter in text:
            match self._where, letter:
                case "content", "\1":
                    self._where = "reasoning"
                case "reasoning", "\2":
                    self._where = "content"
                case "content", "\3":
                    self._where, self._name = "name", ""
                case "name", "\4":
                    self._where = "arguments"
                    parts.append(CallBegun(self._calls, self._name))
                case "arguments", "\5":
                    self._where = "content"
                    parts.append(CallEnded(self._calls))
                    self._calls += 1
                case "content", _:
                    parts.append(ContentPart(letter))
                case "reasoning", _:
                    parts.append(ReasoningPart(letter))
                case "name", _:
                    self._name += letter
                case _:
                    parts.append(CallArguments(self._calls, letter))
        return parts

    def end(self) -> list[ReplyPart]:
        return [CallEnded(self._calls)] if self._where == "arguments" else []


@pytest.fixture(scope="session")
def mark_reader() -> type[MarkReader]:
    return MarkReader


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The model calls tools and thinks, in the words of `MarkReader`. The tools that were read, in the chat's form."""
    seen: list[dict[str, Any]] = []

    def read_tools(fields: Fields) -> ToolUse:
        asked = {name: fields.value(name) for name in ("tools", "tool_choice", "parallel_tool_calls")}
        seen.append(asked)
        tools = tuple(
            Tool(each["name"], each.get("description", ""), each.get("parameters"), strict=each.get("strict", False))
            for each in (tool["function"] for tool in asked["tools"] or ())
        )
        return ToolUse(tools, is_parallel=asked["parallel_tool_calls"] is not False)

    def plan(use: ToolUse, setting: Setting, **_: Any) -> ReplyPlan:
        return ReplyPlan(tuple(tool.to_template() for tool in use.tools), MarkReader, None)

    for room in ("responses", "anthropic"):
        monkeypatch.setattr(f"asyncpage.server.{room}.tools.read_tools", read_tools)
        monkeypatch.setattr(f"asyncpage.server.{room}.body.plan_reply", plan)
    return seen


@pytest.fixture(scope="session")
def make_setting() -> Callable[..., Setting]:
    """What body readers know of a server, with changes."""

    def make(**changes: Any) -> Setting:
        facts: dict[str, Any] = {
            "model_names": ("echo", "alias"),
            "vocab_size": VOCAB,
            "max_model_len": 512,
            "has_chat_template": True,
            "defaults": {},
            "max_choices": 16,
            "timeout_s": None,
            "now": 100.0,
        }
        return Setting(**{**facts, **changes})

    return make


Serve = Callable[..., Awaitable[Site]]


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """Log set-ups of other tests, which might drop lines, do not reach here, and none of ours leaves."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.fixture
def make_engine() -> type[EchoEngine]:
    """For tests that run a loop of their own."""
    return EchoEngine


@pytest.fixture
async def engine() -> EchoEngine:
    return EchoEngine()


@pytest.fixture
async def serve(engine: EchoEngine) -> AsyncIterator[Serve]:
    """Starts servers on the engine, with the settings given, and stops them after the test."""
    started: list[Site] = []

    async def start(**settings: Any) -> Site:
        server = HttpServer(engine, ServerConfig(port=0, **settings))
        await server.start()
        started.append(Site(engine, server, aiohttp.ClientSession()))
        return started[-1]

    yield start
    for site in started:
        await site.session.close()
        await site.server.stop()


@pytest.fixture
def in_site(marked: list[dict[str, Any]]) -> Callable[..., Any]:
    """Runs what asks a new server, on a loop of its own, as property tests must; the model's words are marked."""

    def run(ask: Callable[[Site], Awaitable[Any]]) -> Any:
        async def in_loop() -> Any:
            engine = EchoEngine()
            server = HttpServer(engine, ServerConfig(port=0))
            await server.start()
            async with aiohttp.ClientSession() as session:
                found = await ask(Site(engine, server, session))
            await server.stop()
            return found

        return asyncio.run(in_loop())

    return run


@pytest.fixture
async def site(serve: Serve) -> Site:
    """A server with the default settings."""
    return await serve()
