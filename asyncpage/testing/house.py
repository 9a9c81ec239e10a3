"""A house without loops: scheduler, KV manager and a toy executor, run message by message in any order asked for.

For tests of decisions: nothing waits, nothing is timed, and each actor's inbox is worked off only when told to, so a
test can try every interleaving. Front ends and the detokenizer are recorders that check the outcomes' law.

INVARIANT: a recorded request has at most one outcome; a second one raises.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from asyncpage.actors.base import Actor
from asyncpage.actors.kv_manager import KvManager
from asyncpage.actors.scheduler import Scheduler
from asyncpage.core.admission import SchedulerSettings
from asyncpage.core.block_names import chain_names
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.lessons import Lessons
from asyncpage.core.memory import Memory, Rules
from asyncpage.core.policy_registry import load_policy
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.tier import Tier
from asyncpage.messages import (
    Accepted,
    Admit,
    Cancel,
    End,
    ExecutorLost,
    ExecutorReady,
    Expect,
    Handshake,
    Refused,
    RequestId,
    RequestOptions,
    Step,
    StepFailed,
    StepTokens,
)
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.toy_archive import ToyArchive, ToyArena, ToyFiles
from asyncpage.testing.toy_runner import Guess, ToyRunner


class Inbox:
    """An address whose messages wait until the test delivers them."""

    def __init__(self) -> None:
        self.messages: deque[object] = deque()

    def send(self, message: object) -> None:
        self.messages.append(message)


class Outcomes:
    """What front ends and the detokenizer would have heard, request by request."""

    def __init__(self) -> None:
        self.accepted: set[RequestId] = set()
        self.refused: dict[RequestId, Refused] = {}
        self.tokens: dict[RequestId, list[int]] = {}
        self.cached: dict[RequestId, int] = {}
        self.ends: dict[RequestId, End] = {}

    def send(self, message: object) -> None:
        match message:
            case Accepted(request):
                self.accepted.add(request)
            case Refused(request):
                self._must_be_open(request)
                self.refused[request] = message
            case Expect(request):
                self.tokens[request] = []
            case StepTokens():
                self._tokens(message)
            case _:
                raise TypeError(f"nobody sends {type(message).__name__} here")

    def _tokens(self, message: StepTokens) -> None:
        ids = message.tokens.tolist()
        for request, count in zip(message.requests, message.counts.tolist(), strict=True):
            self._must_be_open(request)
            self.tokens[request] += ids[:count]
            del ids[:count]
        for started in message.started:
            self.cached[started.request] = started.cached_tokens
        for end in message.ends:
            self._must_be_open(end.request)
            self.ends[end.request] = end

    def _must_be_open(self, request: RequestId) -> None:
        if request in self.ends or request in self.refused:
            raise AssertionError(f"request {request} is over already")


class ToyHouse:
    """`admit`, `cancel` and the faults put messages in; `run` or `turn` delivers them."""

    def __init__(
        self,
        handshake: Handshake,
        *,
        rows: int = 8,
        budget_tokens: int = 32,
        depth: int = 1,
        rules: Rules | None = None,
        policy: str = "fcfs",
        victims: str = "last-admitted",
        fairness_bound: int = 0,
        index: type[PrefixIndex] | None = None,
        max_queue: int = 1000,
        long_prefill_tokens: int = 0,
        eos_ids: tuple[int, ...] = (),
        poison: int | None = None,
        slots: int = 0,
        adapter_slots: int = 0,
        files: ToyFiles | None = None,
        is_late: Callable[[int, int], bool] = lambda number, row: False,
        most_drafts: int = 0,
        guess: Guess | None = None,
        itl_target_us: int = 0,
    ) -> None:
        """`slots`: of the host tier, 0 for none; `files`: the tier below it, which may have served another house.

        Of what steps take only that is told which `itl_target_us` asks about: a millisecond a token.

        `is_late`, `guess`: as `ToyRunner` has them.
        """
        self.handshake = handshake
        self.clock = FakeClock()
        self.outcomes = Outcomes()
        self.steps: list[Step] = []
        self._arena = ToyArena(slots, handshake.block_size) if slots else None
        self._new_runner = partial(ToyRunner, handshake, poison=poison, arena=self._arena, is_late=is_late, guess=guess)
        self._runner = self._new_runner()
        self._lessons = Lessons()
        self._broken_epoch = 0  # steps of this epoch and before are dropped, as the executor's ends do
        self._last_epoch = 0
        self._heard = 0  # losses that the scheduler has handled
        self.boxes = {name: Inbox() for name in ("scheduler", "kv_manager", "executor")}
        self.tier = Tier(slots, handshake.groups, handshake.block_size, has_files=files is not None) if slots else None
        self.tables = BlockTables(
            blocks=handshake.blocks,
            block_size=handshake.block_size,
            groups=handshake.groups,
            rows=rows,
            max_tokens=handshake.max_model_len,
            index=None if index is None else index(handshake.groups, handshake.block_size),
            tier=self.tier,
        )
        settings = SchedulerSettings(
            rows=rows,
            block_size=handshake.block_size,
            groups=len(handshake.groups),
            capacity_blocks=handshake.blocks - 1,
            max_tokens=handshake.max_model_len,
            budget_tokens=budget_tokens,
            long_prefill_tokens=long_prefill_tokens,
            depth=depth,
            max_queue=max_queue,
            policy=policy,
            victims=victims,
            fairness_bound=fairness_bound,
            most_drafts=most_drafts,
            vocab_size=handshake.vocab_size,
            eos_ids=eos_ids,
            seed=0,
            adapter_slots=adapter_slots,
            itl_target_us=itl_target_us,
        )
        self._token_us = 1000 if itl_target_us else 0
        self.memory = Memory(self.tables, rules or Rules(long_prefill_tokens=long_prefill_tokens))
        self.heard = Inbox()  # what the KV manager tells front ends
        self.kv_manager = KvManager(
            self.memory,
            self.boxes["scheduler"],
            [self.heard],
            watches=load_policy(policy).wants_hits,
            archive=None if files is None else self.boxes.setdefault("archive", Inbox()),
        )
        self.scheduler = Scheduler(
            settings,
            own=self.boxes["scheduler"],
            kv_manager=self.boxes["kv_manager"],
            executor=self.boxes["executor"],
            detokenizer=self.outcomes,
            frontends=[self.outcomes],
        )
        self.scheduler.started(self.clock)
        self.kv_manager.started(self.clock)
        self._actors: dict[str, Actor] = {"scheduler": self.scheduler, "kv_manager": self.kv_manager}
        if self._arena is not None and files is not None:
            self._actors["archive"] = ToyArchive(self._arena, files, self.boxes["kv_manager"])

    def admit(
        self,
        request: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        options: RequestOptions | None = None,
    ) -> RequestId:
        """A tokenised prompt arrives at the scheduler."""
        options = options or RequestOptions()
        tokens = array("i", prompt).tobytes()
        size, salt = self.handshake.block_size, options.cache_salt
        names = chain_names(tokens, size, salt=salt, adapter=options.adapter) if options.use_cache else ()
        self.boxes["scheduler"].send(Admit(RequestId(request), tokens, names, sampling, options))
        return RequestId(request)

    def cancel(self, request: int) -> None:
        """The client has left."""
        self.boxes["scheduler"].send(Cancel(RequestId(request)))

    def lose_executor(self) -> None:
        """The executor dies with the steps it was sent, and another takes its place once the scheduler has heard."""
        sent = [step.epoch for step in self.boxes["executor"].messages if isinstance(step, Step)]
        self._broken_epoch = max(self._broken_epoch, self._last_epoch, *sent)
        self.boxes["executor"].messages.clear()
        self._runner = self._new_runner()
        self._lessons.restart()
        self.boxes["scheduler"].send(ExecutorLost(epoch=1, reason="killed by the test"))

    def turn(self, name: str) -> bool:
        """Deliver everything that waits for one actor; False when nothing did. The executor runs one step."""
        messages = self.boxes[name].messages
        if not messages:
            return False
        if name == "executor":
            self._execute(messages.popleft())
        else:
            actor = self._actors[name]
            for _ in range(len(messages)):
                actor.receive(messages.popleft())
                self._revive()
            actor.batch_end()
        return True

    def _revive(self) -> None:
        """What the scheduler had sent before it heard of the loss is dropped, as a new executor loads for seconds."""
        if self._heard < self.scheduler.stats()["executor_losses"]:
            self._heard += 1
            self.boxes["executor"].messages.clear()
            self.boxes["scheduler"].send(ExecutorReady(epoch=1))

    def run(self, *, until: Callable[[], bool] = lambda: False, most_turns: int = 100_000) -> None:
        """Deliver in turn until nothing waits, or `until` holds."""
        for _ in range(most_turns):
            turned = [self.turn(name) for name in self.boxes if not until()]
            if not any(turned):
                return
        raise AssertionError(f"still busy after {most_turns} turns")

    def _execute(self, step: object) -> None:
        if not isinstance(step, Step):
            raise TypeError(f"nobody sends {type(step).__name__} to the executor")
        if step.epoch <= self._broken_epoch:
            return
        self._last_epoch = step.epoch
        self.steps.append(step)
        lessons, step = self._lessons.before(step)
        for lesson in lessons:
            self._runner.learn(lesson)
        try:
            done = self._runner.execute(step)
            self.boxes["scheduler"].send(replace(done, elapsed_us=self._token_us * int(step.counts.sum())))
        except RuntimeError as error:
            self._broken_epoch = step.epoch
            self.boxes["scheduler"].send(StepFailed(step.number, step.epoch, str(error)))
