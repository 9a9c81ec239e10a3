"""The engine in this process: starts the executor, builds the house, and gives out its in-process API.

The server and the command line use `submit` with a sink; Python programs use `async for` over `generate` or `chat`.
Everything is called on the loop that `start` ran on.

INVARIANT: whatever happens to an actor, every open request is answered before `on_death` is called.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from asyncpage.actors.base import ExecutorEnd
from asyncpage.actors.executor import ExecutorActor
from asyncpage.actors.frontend import Sink
from asyncpage.actors.supervisor import Supervisor
from asyncpage.adapters.shelf import AdapterShelf
from asyncpage.clock import Clock, SystemClock
from asyncpage.compiler import GrammarCompiler
from asyncpage.config import EngineConfig
from asyncpage.core.policy_registry import load_policy
from asyncpage.core.pooling import POOLED, check_mode, choose_pooling, no_embeddings
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.backend_registry import load_backend
from asyncpage.grammar.request import read_request
from asyncpage.grammar.source import GrammarSource
from asyncpage.host_memory import open_arena
from asyncpage.house import House, StandIn, build, executor_settings, fingerprint, mailboxes, new_recorder
from asyncpage.logs import configure_logs_unless_set
from asyncpage.lookout import Lookout
from asyncpage.messages import (
    ChatPrompt,
    Constraint,
    Drain,
    Handshake,
    Load,
    Pooling,
    Prompt,
    Question,
    RequestId,
    RequestOptions,
    ResetCache,
    Why,
)
from asyncpage.model_files import ModelFiles, read_model_files
from asyncpage.outputs import Part
from asyncpage.part_stream import PartStream
from asyncpage.pipes.cache_feed import CacheFeed
from asyncpage.pipes.host_arena import HostArena
from asyncpage.pipes.journal.recorder import Recorder
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.pipes.launcher import Launcher
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.placement import executor_launcher
from asyncpage.prompts import PromptLike, as_prompt
from asyncpage.store import resolve_model, shown_name
from asyncpage.text.token_logprobs import TokenTable

State = Literal["ready", "restarting", "draining", "dead"]

ANSWER_TIMEOUT_S = 10.0
"""How long the KV manager may take to answer a question: many steps."""


class AsyncEngine:
    """A running engine. Made by `start`, ended by `stop`."""

    def __init__(
        self,
        config: EngineConfig,
        handshake: Handshake,
        house: House,
        executor: ExecutorEnd,
        boxes: Mapping[str, Mailbox],
        clock: Clock,
        files: ModelFiles,
        adapters: AdapterShelf,
        pooling: Pooling | None = None,
        recorder: Recorder | None = None,
        arena: HostArena | None = None,
    ) -> None:
        """`start` calls this when everything is built; from here on every actor runs."""
        self.config = config
        self.handshake = handshake
        self.model_names = adapters.served
        self.adapters = adapters
        self.fingerprint = fingerprint(handshake)
        self.vocab_size = handshake.vocab_size
        self.hidden_size = handshake.hidden_size
        self.is_generative = handshake.kind == "decoder"
        self.max_model_len = house.max_model_len
        self.max_requests = config.max_queue + config.max_num_seqs
        self.tokens: TokenTable = files.text.tokenizer
        self.tokenizer_info = files.text.describe()
        self.has_chat_template = files.text.template is not None
        self.tool_parser, self.reasoning_parser = files.text.tool_parser, files.text.reasoning_parser
        self.prompt_end = files.text.prompt_end
        self.sampling_defaults = files.defaults
        self.pooling = pooling
        self.on_death: Callable[[str], None] = lambda reason: None
        self.house = house
        self.executor = executor
        self.lookout = Lookout(house.frontend, boxes, handshake, clock.now)
        self._frontend = house.frontend
        self._recorder = recorder
        self._arena = arena
        self._clock = clock
        self._compiler = GrammarCompiler(config.grammar_backend)
        self._vocabulary = files.vocabulary
        self._eos_ids = files.text.tokenizer.eos_ids
        self._is_taught = False  # whether the executor's end has the vocabulary
        self._executor_box = boxes["executor"]
        self._is_draining = False
        self._death: str | None = None
        self._scheduler = boxes["scheduler"]
        self._supervisor = Supervisor(clock, self._died)
        executor.on_gone = lambda error: self._died(executor.name, error)
        frontends = [boxes["frontend"]]
        for actor in (executor, *house.actors):
            self._supervisor.add(actor, boxes[actor.name], frontends)
        self._supervisor.add(house.new_tokenizer(), boxes["tokenizer"], frontends, factory=house.new_tokenizer)
        self._running = asyncio.ensure_future(self._supervisor.run())
        self._running.add_done_callback(self._supervisor_ended)

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        on_death: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        launcher: Launcher | None = None,
        stand_in: StandIn | None = None,
    ) -> AsyncEngine:
        """Load the model and run every actor.

        `on_death`: called with the reason when an actor dies that cannot be restarted. `launcher`: starts executors
        in another way than `config.placement` names. `stand_in`: what runs in the executor's place; no model is looked
        for then, and no process started.
        Errors: `UsageError`, `ModelError` or `ExecutorError`, each with one line that says what to do.
        """
        configure_logs_unless_set()
        config.check()
        load_policy(config.scheduling_policy)  # a wrong one is refused before anything starts
        load_backend(config.grammar_backend)
        clock = clock or SystemClock()
        boxes = mailboxes(config)
        files = None if config.journal is None else SegmentFiles(Path(config.journal), config.journal_bytes)
        recorder: Recorder | None = None
        arena: HostArena | None = None
        executor: ExecutorEnd
        if stand_in is not None:
            stand_in.check(config)
            executor = stand_in.executor(boxes["scheduler"], clock)
        else:
            path = resolve_model(config.model)
            draft = None if config.draft_model is None else resolve_model(config.draft_model)
            arena = open_arena(config)
            executor = ExecutorActor(
                launcher or executor_launcher(config),
                Load(executor_settings(config, path, arena, draft)),
                boxes["scheduler"],
                clock,
                load_timeout_s=config.load_timeout_s,
                step_timeout_s=config.step_timeout_s,
                max_restarts=config.max_restarts,
            )
        launch = asyncio.ensure_future(executor.launch_first())
        try:
            if stand_in is not None:
                read = ModelFiles(stand_in.text, {})
            else:
                read = await asyncio.to_thread(read_model_files, path, config, draft)
            text = read.text
            handshake = await launch
            pooling = choose_pooling(config.pooling, read.pooling, handshake.kind)
            seed = int.from_bytes(os.urandom(7), "little") if config.seed is None else config.seed
            adapters = AdapterShelf(config, config.served_model_name or (shown_name(config.model),), handshake)
            await adapters.load_configured()
            if files is not None:
                recorder = new_recorder(files, clock, config, handshake, seed, text)
            around = None if stand_in is None else stand_in.around_index
            house = build(
                config, handshake, text, clock, seed, boxes.__getitem__, recorder, around_index=around, arena=arena
            )
        except BaseException:
            launch.cancel()
            with suppress(BaseException):
                await launch
            await executor.closed()
            for held in (arena, recorder or files):
                if held is not None:
                    held.close()
            raise
        engine = cls(config, handshake, house, executor, boxes, clock, read, adapters, pooling, recorder, arena)
        if on_death is not None:
            engine.on_death = on_death
        return engine

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What `/ready` says: only `ready` takes requests without delay."""
        if self._death is not None or self.executor.state in ("gone", "closed"):
            return "dead"
        if self._is_draining:
            return "draining"
        return "ready" if self.executor.state == "ready" else "restarting"

    def submit(self, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink) -> RequestId:
        """Start `sampling.n` requests with consecutive ids, which answer to `sink`, and return the first.

        Errors: `RequestError` when the engine takes nothing: it is dead (503) or holds too many requests (429), or the
        model does not do what is asked, or `sampling` cannot go with a constraint (400).
        """
        self._check_alive()
        check_mode(self.handshake.kind, self.pooling, sampling, options)
        if options.constraint is not None:
            sampling.check_constrained(self._eos_ids)
            self._teach()
        if not self.config.enable_prefix_caching or self.handshake.kind == "encoder":
            options = replace(options, use_cache=False)
        return self._frontend.open(prompt, sampling, options, sink)

    def cancel(self, request: RequestId) -> None:
        """End a request whose client has left; unknown and ended ids are ignored."""
        self._frontend.cancel(request)

    async def tokenize(self, prompt: Prompt) -> Sequence[int]:
        """The ids that the prompt would run with; it may be longer than the context.

        Errors: `RequestError` when it has no ids.
        """
        self._check_alive()
        return array("i", await self._frontend.encode(prompt))

    async def generate(
        self,
        prompt: PromptLike,
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        structured: Mapping[str, Any] | None = None,
        adapter: str | None = None,
    ) -> AsyncIterator[Part]:
        """The answer to a prompt, part by part as it comes; leaving the loop cancels the request.

        `prompt`: text, token ids, or a `Prompt`. `structured`: what the answer must look like, one of
        `{"json": schema}`, `{"regex": pattern}`, `{"choice": texts}`, `{"grammar": gbnf}`, `{"json_object": True}`.
        `adapter`: the name of one that is loaded, to run the model with.
        Errors: `RequestError` when it is refused or fails.
        """
        sampling = sampling or SamplingParams(**self.sampling_defaults)
        sampling.check(self.vocab_size)
        stream = PartStream(sampling.n, self.tokens)
        options = self.adapters.chosen(adapter, options or RequestOptions())
        if structured is not None:
            options = replace(options, constraint=await self.compile_grammar(read_request(structured)[0]))
        stream.first = first = self.submit(as_prompt(prompt), sampling, options, stream)
        try:
            async for part in stream.parts():
                yield part
        finally:
            for choice in range(sampling.n):
                self.cancel(RequestId(first + choice))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        structured: Mapping[str, Any] | None = None,
        adapter: str | None = None,
    ) -> AsyncIterator[Part]:
        """The answer to a conversation of mappings with `role` and `content`, as `generate` gives it."""
        return self.generate(ChatPrompt(tuple(messages)), sampling, options, structured=structured, adapter=adapter)

    async def compile_grammar(self, source: GrammarSource) -> Constraint:
        """What `RequestOptions.constraint` takes. Errors: as `GrammarCompiler.compile`; 503 when the engine is dead."""
        self._check_alive()
        self._teach()  # so that the executor reads its vocabulary while this compiles
        return await self._compiler.compile(source)

    async def embed(self, prompt: PromptLike, options: RequestOptions | None = None) -> list[float]:
        """The vector of a prompt (text, token ids, or a `Prompt`), pooled as `options` or else the model says.

        Errors: `RequestError` when it is refused or fails.
        """
        options = options or RequestOptions()
        if options.pooling is None:
            if self.pooling is None:
                raise no_embeddings()
            options = replace(options, pooling=self.pooling)
        finish = [part async for part in self.generate(prompt, POOLED, options)][-1].finish
        assert finish is not None
        vector: list[float] = np.frombuffer(finish.embedding, dtype="<f4").tolist()
        return vector

    # --- the house ---------------------------------------------------------------------------------------------------

    async def ping(self, timeout_s: float) -> Mapping[str, Mapping[str, float]]:
        """Every actor's stats, by actor name. Errors: `TimeoutError` naming those that do not answer."""
        return await self._frontend.ping(timeout_s)

    async def reset_prefix_cache(self) -> int:
        """Let no prefix that was computed so far be found again; requests that run go on. The blocks dropped.

        Errors: `RequestError` when the engine takes no questions, `TimeoutError` when no answer comes.
        """
        dropped = await self._ask_cache(ResetCache())
        assert isinstance(dropped, int)
        return dropped

    async def why(self, label: str) -> Mapping[str, object] | None:
        """What the request with this `RequestOptions.label` found in the prefix cache and why no more, for JSON.

        None when it is not remembered. Errors: as for `reset_prefix_cache`.
        """
        explanation = await self._ask_cache(Why(label))
        assert explanation is None or isinstance(explanation, Mapping)
        return explanation

    def follow_cache_events(self) -> CacheFeed:
        """What the prefix cache stores and removes from now on: iterate over it, and close it when done.

        It ends with the engine. A follower that is too slow is given `EventsLost` in place of what it lost.
        Errors: `RequestError` when the engine is dead or too many follow.
        """
        self._check_alive()
        return self._frontend.follow()

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what runs; False when some of it still does at the end of the time."""
        self._is_draining = True
        self._scheduler.send(Drain())
        try:
            await asyncio.wait_for(self._frontend.wait_closed(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Fail what still runs, stop every actor and end the executor. May be called twice."""
        self._death = self._death or "it was stopped"  # before anything else: what came now would get no answer
        self._frontend.fail_all(Failure(503, "the engine was stopped", "engine_stopped"))
        await self._supervisor.stop()
        await asyncio.wait([self._running])  # how it ended was told by `on_death`
        await self._compiler.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        if self._arena is not None:
            self._arena.close()

    def now(self) -> float:
        """Seconds on the clock that deadlines are on."""
        return self._clock.now()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self._clock.wall()

    async def _ask_cache(self, question: Question) -> object:
        self._check_alive()
        return await self._frontend.ask("kv_manager", question, ANSWER_TIMEOUT_S)

    def _teach(self) -> None:
        """Nothing needs to know what tokens stand for before the first grammar. Errors: `RequestError` 400."""
        if self._vocabulary is None:
            raise RequestError("no model runs here that could follow a grammar; leave it out", code="unsupported")
        if not self._is_taught:
            self._is_taught = True
            self._executor_box.send(self._vocabulary)

    def _check_alive(self) -> None:
        """Nothing answers in a dead engine. Errors: `RequestError` 503."""
        if self._death is not None:
            raise RequestError(f"the engine is dead: {self._death}", status=503, code="engine_dead")

    def _died(self, name: str, error: BaseException) -> None:
        self._death = f"the {name} died: {type(error).__name__}: {error}"
        self._frontend.fail_all(Failure(500, self._death, "engine_dead"))
        self.on_death(self._death)

    def _supervisor_ended(self, running: asyncio.Future[None]) -> None:
        """With nobody to look after the actors, no request may go on waiting for them."""
        error = None if running.cancelled() else running.exception()
        if self._death is None:
            self._died("supervisor", error or RuntimeError("it was cancelled"))
