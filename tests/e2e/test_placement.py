"""Actors do not know where they run: each on a loop and a thread of its own gives the same tokens."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Sequence
from pathlib import Path

from asyncpage.actors.executor import ExecutorActor
from asyncpage.clock import SystemClock
from asyncpage.config import EngineConfig
from asyncpage.errors import Failure
from asyncpage.house import ACTORS, Text, build, executor_settings, mailboxes
from asyncpage.messages import Finish, Load, LogprobEntry, RequestId, RequestOptions, TextPrompt
from asyncpage.pipes.launcher import ProcessLauncher
from asyncpage.testing.threaded_cell import ThreadedCell
from asyncpage.text.chat_template import load_chat_template
from asyncpage.text.tokenizer import load_tokenizer
from tests.e2e.oracle import Oracle, greedy

TOKENS = 24
ENDING = ("tokenizer", "frontend", "detokenizer", "scheduler", "kv_manager", "executor")


class QueueSink:
    """Brings one answer out of its front end's thread."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: queue.Queue[Finish | Failure] = queue.Queue()

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        pass

    def refused(self, request: RequestId, failure: Failure) -> None:
        self.ends.put(failure)

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        self.tokens += token_ids

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        pass

    def finished(self, finish: Finish) -> None:
        self.ends.put(finish)


def test_every_actor_on_its_own_loop_and_thread_gives_the_oracles_tokens(tiny_model: Path, tiny_oracle: Oracle) -> None:
    config = EngineConfig(model=str(tiny_model), max_num_seqs=8, max_model_len=128, cpu_threads=1)
    clock = SystemClock()
    boxes = mailboxes(config)
    cells = {name: ThreadedCell(boxes[name]) for name in ACTORS}
    try:
        executor = ExecutorActor(
            ProcessLauncher(),
            Load(executor_settings(config, tiny_model, None, None)),
            cells["scheduler"].address,
            clock,
            load_timeout_s=60,
            step_timeout_s=60,
            max_restarts=0,
        )
        handshake = asyncio.run(executor.launch_first())
        tokenizer = load_tokenizer(tiny_model)
        text = Text(tokenizer, load_chat_template(tiny_model, None))
        house = build(config, handshake, text, clock, 0, lambda name: cells[name].address)
        frontends = [cells["frontend"].address]
        actors = (executor, house.kv_manager, house.scheduler, house.detokenizer, house.frontend, house.new_tokenizer())
        for actor in actors:
            cells[actor.name].start(actor, clock, frontends)
        prompts = ["def run(self):", "class Loop:\n    ", "return self._loop"]
        sinks = [QueueSink() for _ in prompts]
        for prompt, sink in zip(prompts, sinks, strict=True):
            cells["frontend"].call(
                lambda p=prompt, s=sink: house.frontend.open(TextPrompt(p), greedy(TOKENS), RequestOptions(), s)
            )
        for prompt, sink in zip(prompts, sinks, strict=True):
            end = sink.ends.get(timeout=60)
            assert isinstance(end, Finish)
            assert end.reason == "length"
            tiny_oracle.check(tokenizer.encode(prompt), sink.tokens)
    finally:
        for name in ENDING:
            cells[name].stop()
