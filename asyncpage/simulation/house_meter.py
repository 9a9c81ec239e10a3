"""Times every actor from outside, around `receive` and `batch_end`; it costs nothing when it is off.

`asyncpage bench control-plane` uses it around a part of its run.

INVARIANT: while it is off, the classes are as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from asyncpage.actors.base import Actor
from asyncpage.actors.detokenizer import DetokenizerActor
from asyncpage.actors.frontend import Frontend
from asyncpage.actors.kv_manager import KvManager
from asyncpage.actors.scheduler import Scheduler
from asyncpage.actors.simulated_executor import SimulatedExecutor
from asyncpage.actors.tokenizer import TokenizerActor
from asyncpage.core.memory import Memory

NAMING = "naming of blocks"
"""What the KV manager does after it has answered: naming blocks that are full. No step waits for it."""

_ACTORS: tuple[type[Actor], ...] = (
    TokenizerActor,
    Scheduler,
    KvManager,
    SimulatedExecutor,
    DetokenizerActor,
    Frontend,
)

ACTORS = tuple(actor.name for actor in _ACTORS)

SETTLING = (Scheduler.name, KvManager.name)
"""Who settles, schedules and commits a step."""


class HouseMeter:
    """Nanoseconds by actor, `NAMING` apart, while it is on: `with meter: ...`."""

    def __init__(self) -> None:
        self.ns: defaultdict[str, int] = defaultdict(int)
        self._before: list[tuple[type, str, Any]] = []

    def __enter__(self) -> HouseMeter:
        for actor in _ACTORS:
            self._replace(actor, "receive", self._timed(actor.name, actor.receive))
            self._replace(actor, "batch_end", self._timed(actor.name, actor.batch_end))
        self._replace(Memory, "publish", self._timed(NAMING, Memory.publish, inside=KvManager.name))
        return self

    def __exit__(self, *exc_info: object) -> None:
        for owner, name, method in reversed(self._before):
            if method is None:
                delattr(owner, name)
            else:
                setattr(owner, name, method)
        self._before.clear()

    def _replace(self, owner: type, name: str, timed: Callable[..., Any]) -> None:
        self._before.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, timed)

    def _timed(self, name: str, call: Callable[..., Any], inside: str | None = None) -> Callable[..., Any]:
        """`call`, and what it returns to be called later, on the account of `name` instead of `inside`."""
        ns = self.ns

        def timed(*arguments: Any) -> Any:
            began = perf_counter_ns()
            rest = call(*arguments)
            took = perf_counter_ns() - began
            ns[name] += took
            if inside is not None:
                ns[inside] -= took
            return self._timed(name, rest) if callable(rest) else rest

        return timed
