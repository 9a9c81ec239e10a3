"""The lookout: what can be seen of a running engine at a moment, for those who draw it.

The chart routes of the server open it, look and close it; it asks the KV manager for the blocks (`Chart`, `LookAt`),
every actor for its numbers (`Ping`), and watches the mailboxes meanwhile.

INVARIANT: while nobody has it open, nothing is watched, asked or kept; however many look, the actors are asked at most
once in `EVERY_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from asyncpage.errors import RequestError
from asyncpage.messages import BlockChart, BlockSight, Chart, Handshake, LookAt, Question
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.pipes.traffic import Passed, StepMark, Traffic
from asyncpage.records import record

EVERY_S = 0.2
"""Five pictures a second look like motion."""

ANSWER_S = 5.0
"""How long an actor may take to answer: many steps."""

MOST_LOOKERS = 8
"""Who may have it open at once: each is sent its own differences."""


class Asked(Protocol):
    """The front end, as the lookout uses it."""

    async def ping(self, timeout_s: float) -> Mapping[str, Mapping[str, float]]: ...

    async def ask(self, name: str, question: Question, timeout_s: float) -> object: ...


@record(frozen=True, slots=True, eq=False)
class Sight:
    """One look. `steps`: the last that came back while it was open. `boxes`: by the name of the actor that reads it."""

    at_s: float
    blocks: BlockChart
    steps: tuple[StepMark, ...]
    boxes: Mapping[str, Passed]
    stats: Mapping[str, Mapping[str, float]]


class Lookout:
    """Of one engine, on its loop. `handshake`: what the executor said of itself, for whoever draws."""

    def __init__(
        self, frontend: Asked, boxes: Mapping[str, Mailbox], handshake: Handshake, now: Callable[[], float]
    ) -> None:
        self.handshake = handshake
        self._frontend = frontend
        self._now = now
        self._traffic = Traffic(boxes, now)
        self._lookers = 0
        self._last: Sight | None = None
        self._looking: asyncio.Future[None] | None = None  # done when whoever looks at this moment has

    def open(self) -> None:
        """Somebody begins to look; `close` ends it. Errors: `RequestError` 429 when too many do."""
        if self._lookers >= MOST_LOOKERS:
            text = f"{self._lookers} watch the chart already; close one of them first"
            raise RequestError(text, status=429, code="too_many_watchers", retry_after_s=5.0)
        if not self._lookers:
            self._traffic.start()
        self._lookers += 1

    def close(self) -> None:
        self._lookers -= 1
        if not self._lookers:
            self._traffic.stop()
            self._last = None

    async def look(self) -> Sight:
        """The engine now, or as it was less than `EVERY_S` ago. Only while open.

        Errors: `RequestError` when the engine is dead or too many questions wait, `TimeoutError` when an actor does not
        answer.
        """
        while self._looking is not None:
            await asyncio.shield(self._looking)
        if self._last is not None and self._now() - self._last.at_s < EVERY_S:
            return self._last
        self._looking = looked = asyncio.get_running_loop().create_future()
        try:
            sight = await self._look()
        finally:
            self._looking = None
            looked.set_result(None)
        self._last = sight if self._lookers else None
        return sight

    async def look_at(self, block: int) -> BlockSight | None:
        """One block, None for a number that is no block's. Also while closed. Errors: as for `look`."""
        sight = await self._frontend.ask("kv_manager", LookAt(block), ANSWER_S)
        assert sight is None or isinstance(sight, BlockSight)
        return sight

    async def _look(self) -> Sight:
        blocks = await self._frontend.ask("kv_manager", Chart(), ANSWER_S)
        assert isinstance(blocks, BlockChart)
        stats = await self._frontend.ping(ANSWER_S)
        return Sight(self._now(), blocks, self._traffic.steps(), self._traffic.take(), stats)
