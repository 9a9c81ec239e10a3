"""Whatever the order in which messages arrive and batches end, a recording is decided again the same way."""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from asyncpage.actors.base import Actor
from asyncpage.config import EngineConfig
from asyncpage.core.block_names import chain_names
from asyncpage.core.sampling import SamplingParams
from asyncpage.house import Text, build
from asyncpage.messages import (
    Admit,
    Cancel,
    Constraint,
    Drain,
    Ended,
    ExecutorGone,
    ExecutorLost,
    ExecutorReady,
    LayerGroup,
    RequestId,
    RequestOptions,
    Step,
    StepFailed,
)
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.recorder import Recorder
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.replay.rerun import Rerun
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.house import Inbox
from asyncpage.testing.toy_runner import ToyRunner, toy_handshake
from asyncpage.text.artificial_vocabulary import artificial_vocabulary
from asyncpage.text.tokenizer import Tokenizer

GROUPS = {
    "full": (LayerGroup("full", 0, 1),),
    "both": (LayerGroup("full", 0, 1), LayerGroup("window", 8, 1)),
}


class Interleaved:
    """The house's two actors and a toy executor, turned by chance, a few messages of an inbox at a time."""

    def __init__(self, path: Path, seed: int, groups: str) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.handshake = toy_handshake(blocks=self.chance.choice((24, 40)), groups=GROUPS[groups])
        config = EngineConfig(
            max_num_seqs=6,
            max_num_batched_tokens=self.chance.choice((8, 24)),
            block_size=self.handshake.block_size,
            pipeline_depth=self.chance.choice((1, 2)),
            prefix_index=self.chance.choice(("chain", "tree")),
            scheduling_policy=self.chance.choice(("fcfs", "priority", "longest-prefix")),
            preemption_policy=self.chance.choice(("last-admitted", "priority", "least-computed")),
            max_queue=20,
            journal=str(path),
        )
        text = Text(Tokenizer(replace(artificial_vocabulary(), end_ids=(5, 11))), None)
        self.recorder = Recorder(
            SegmentFiles(path, 8 << 20), self.clock, config=config, handshake=self.handshake, seed=1, eos_ids=(5, 11)
        )
        names = ("scheduler", "kv_manager", "executor")
        self.boxes = {name: Inbox() for name in names}
        elsewhere = Inbox()
        house = build(
            config, self.handshake, text, self.clock, 1, lambda name: self.boxes.get(name, elsewhere), self.recorder
        )
        self.actors: dict[str, Actor] = {actor.name: actor for actor in house.actors if actor.name in names}
        for actor in self.actors.values():
            actor.started(self.clock)
        self.runner = ToyRunner(self.handshake)
        self.epoch, self.broken = 0, 0
        self.requests = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            if self.chance.random() < 0.15:
                self.clock.advance(self.chance.random())
            if self.chance.random() < 0.1:
                self.boxes["scheduler"].send(self.something_from_outside())
            self.turn(self.chance.choice(tuple(self.boxes)))
        self.recorder.close()

    def turn(self, name: str) -> None:
        messages: deque[object] = self.boxes[name].messages
        if name == "executor":
            if messages:
                self.execute(messages.popleft())
            return
        count = self.chance.randint(0, len(messages))
        for _ in range(count):
            self.actors[name].receive(messages.popleft())
        if count:
            self.actors[name].batch_end()

    def execute(self, step: object) -> None:
        assert isinstance(step, Step)
        if step.epoch <= self.broken:
            return
        self.epoch = step.epoch
        if self.chance.random() < 0.02:
            self.broken = step.epoch
            self.boxes["scheduler"].send(StepFailed(step.number, step.epoch, "by chance"))
        else:
            self.boxes["scheduler"].send(self.runner.execute(step))

    def something_from_outside(self) -> object:
        kind = self.chance.random()
        if kind < 0.7 or not self.requests:
            return self.admit()
        request = RequestId(self.chance.randint(1, self.requests))
        if kind < 0.85:
            return Cancel(request)
        if kind < 0.95:
            return Ended(request, self.chance.randint(0, 6))
        if kind < 0.99:
            sent = [step.epoch for step in self.boxes["executor"].messages if isinstance(step, Step)]
            self.broken = max(self.broken, self.epoch, *sent)
            self.boxes["executor"].messages.clear()
            self.runner = ToyRunner(self.handshake)
            self.boxes["scheduler"].send(ExecutorLost(1, "by chance"))
            return ExecutorReady(1)
        return self.chance.choice((Drain(), ExecutorGone("by chance")))

    def admit(self) -> Admit:
        chance = self.chance
        prompt = [chance.choice((0, 1, 2)) * 9 + place for place in range(chance.randint(1, 30))]
        tokens = array("i", (*prompt, chance.randint(0, 96))).tobytes()
        salt = chance.choice(("", "", "salt"))
        use_cache = chance.random() < 0.9
        names = chain_names(tokens, self.handshake.block_size, salt=salt) if use_cache else ()
        sampling = SamplingParams(
            n=chance.choice((1, 1, 2)), max_tokens=chance.randint(0, 20), prompt_logprobs=chance.choice((None, None, 1))
        )
        deadline = self.clock.now() + chance.random() * 9 if chance.random() < 0.2 else None
        constraint = Constraint(bytes([chance.randrange(3)] * 16), b"network") if chance.random() < 0.2 else None
        options = RequestOptions(
            chance.randrange(3), deadline, salt, use_cache, echo=chance.random() < 0.1, constraint=constraint
        )
        first = self.requests + 1
        self.requests += sampling.n
        return Admit(RequestId(first), tokens, names, sampling, options)


@pytest.mark.parametrize("groups", ["full", "both"])
@pytest.mark.parametrize("seed", range(14))
def test_any_order_of_events_is_decided_again(tmp_path: Path, seed: int, groups: str) -> None:
    house = Interleaved(tmp_path / "j", seed, groups)
    house.run(1000)
    rerun = Rerun(JournalReader(tmp_path / "j"))
    assert rerun.run() is None
    assert rerun.summary().decisions > 50
