"""The KV manager: owns the block tables and the prefix index, and settles every step over memory.

The scheduler sends `Reserve` and gets `Granted`; it sends `Rewind` when no step is in flight and no row exists any
more, `Watch` under a policy that wants to know what is cached, and `Unwatch` when a request is over that had no row.
Front ends send `Ask` and `Follow`, and get `Answer` and `CacheEvents`. With tiers it sends the archive `Store`,
`Fetch`, `Touch` and `Discard`, is told `Shelved`, `Stored` and `Fetched`, and stirs the scheduler up with `Stirred`.
Everything decided here is `core/settlement.py`.

INVARIANT: blank + cached + referenced blocks = all blocks, after every message.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace

import structlog

from asyncpage.actors.base import Actor, Continuation
from asyncpage.clock import Clock, Timer
from asyncpage.core.block_chart import draw, look_at
from asyncpage.core.block_tables import Ledger
from asyncpage.core.cache_news import CacheNews
from asyncpage.core.memory import Memory
from asyncpage.core.settlement import settle
from asyncpage.core.tier import Tier
from asyncpage.core.watch import HitWatch
from asyncpage.errors import UnknownMessage
from asyncpage.messages import (
    Answer,
    Ask,
    CacheEvents,
    Chart,
    Fetched,
    Follow,
    LookAt,
    Reserve,
    ResetCache,
    Rewind,
    Shelved,
    Stirred,
    Stored,
    Unwatch,
    Watch,
    Why,
)
from asyncpage.pipes.mailbox import Address

log = structlog.get_logger("asyncpage.kv")

PATIENCE_S = 10.0  # a file of a few megabytes takes milliseconds; a disk that says nothing for so long has gone away


class KvManager(Actor):
    """Keeps the tables; one `Granted` for each `Reserve`. `watches`: the scheduler's policy wants hits.

    `archive`: where blocks are kept in files, when the memory's tier has any.
    """

    name = "kv_manager"

    def __init__(
        self,
        memory: Memory,
        scheduler: Address,
        frontends: Items[Address] = (),
        *,
        watches: bool = False,
        archive: Address | None = None,
    ) -> None:
        self._memory = memory
        self._scheduler = scheduler
        self._frontends = frontends
        self._tier = memory.tables.tier
        self._archive = archive
        self._is_saving = False  # the last answer brought the scheduler blocks to save, and it will ask again
        self._watch = HitWatch() if watches else None
        self._news = CacheNews(memory.tables, memory.obituaries, self._watch)
        self._followers: set[int] = set()
        self._patience: Timer | None = None  # runs while a request waits for files
        self._answers = 0  # of the archive
        self._answers_before = 0  # when the timer was set

    def started(self, clock: Clock) -> None:
        self._clock = clock

    def receive(self, message: object) -> Continuation | None:
        match message:
            case Reserve():
                self._settle(message)
            case Rewind():
                self._memory.rewind(forget=message.forget)
            case Watch():
                if self._watch is not None:
                    self._watch.watch(message.request, message.prefix.names)
            case Unwatch():
                self._memory.sharing.left(message.request)
                if self._watch is not None:
                    self._watch.unwatch(message.request)
            case Ask():
                return self._answer(message)
            case Follow():
                self._follow(message)
            case Shelved() | Stored() | Fetched():
                self._heard(message)
            case _:
                raise UnknownMessage(self, message)
        return None

    def batch_end(self) -> None:
        if self._tier is not None:
            self._pass_on(self._tier)
        if self._followers and (events := self._news.events()):
            for frontend in sorted(self._followers):
                self._frontends[frontend].send(CacheEvents(events))

    def ledger(self) -> Ledger:
        """Where every block is at this moment, counted afresh."""
        return self._memory.tables.ledger()

    def stats(self) -> Mapping[str, float]:
        pool = self._memory.tables.pool  # its own counts: `ledger` looks at every block, which would hold up a step
        return {
            "blocks_total": pool.total,
            "blocks_blank": pool.blank,
            "blocks_cached": pool.cached,
            "blocks_referenced": pool.total - pool.free,
            "blocks_evicted": pool.evicted,
            "requests_parked": len(self._memory.sharing),
            **({} if self._tier is None else self._tier.stats()),
        }

    def _settle(self, reserve: Reserve) -> None:
        granted, has_unnamed = settle(self._memory, reserve)
        if self._watch is not None:
            for admission in granted.admitted:
                self._watch.unwatch(admission.request)
            granted = replace(granted, hits=self._watch.drain())
        self._is_saving = bool(len(granted.saves))
        self._scheduler.send(granted)
        if has_unnamed:
            self._memory.publish(reserve)

    def _heard(self, answer: Shelved | Stored | Fetched) -> None:
        """The archive tells."""
        if self._tier is None:
            raise UnknownMessage(self, answer)
        self._answers += 1
        match answer:
            case Shelved():
                self._tier.files.shelved(answer)
            case Stored():
                self._tier.files.stored(answer)
            case Fetched():
                self._tier.files.fetched(answer)

    def _pass_on(self, tier: Tier) -> None:
        """Give the archive what there is to do, and the scheduler what the archive's answers have changed."""
        if self._archive is not None:
            for work in tier.files.work():
                self._archive.send(work)
        woken = tier.files.woken()
        if woken or (tier.can_save and not self._is_saving):
            self._is_saving = True
            self._scheduler.send(Stirred(woken))
        if tier.files.is_awaited and self._patience is None:
            self._wait(tier)

    def _wait(self, tier: Tier) -> None:
        """No request may wait for ever on a disk that hangs."""
        self._answers_before = self._answers
        self._patience = self._clock.call_later(PATIENCE_S, lambda: self._look_whether_it_answers(tier))

    def _look_whether_it_answers(self, tier: Tier) -> None:
        self._patience = None
        if tier.files.is_awaited and self._answers == self._answers_before:
            log.error("archive.silent", waited_s=PATIENCE_S)
            tier.files.give_up()  # `batch_end` follows a timer: it tells the scheduler, and waits on for whom it must

    def _answer(self, ask: Ask) -> Continuation | None:
        match ask.question:
            case ResetCache():
                value: object = self._memory.forget_prefixes()
            case Why():
                value = self._memory.explanations.why(ask.question.label)
            case Chart():
                return self._answer_in_slices(ask, draw(self._memory.tables))
            case LookAt():
                return self._answer_in_slices(
                    ask, look_at(self._memory.tables, self._memory.explanations, ask.question.block)
                )
        self._frontends[ask.frontend].send(Answer(ask.token, value))
        return None

    def _answer_in_slices(self, ask: Ask, slices: Generator[None, None, object]) -> Continuation | None:
        """The first slice of the work, and what is left: steps have their turn in between."""
        try:
            next(slices)
        except StopIteration as drawn:
            self._frontends[ask.frontend].send(Answer(ask.token, drawn.value))
            return None
        return lambda: self._answer_in_slices(ask, slices)

    def _follow(self, message: Follow) -> None:
        before = bool(self._followers)
        if message.is_on:
            self._followers.add(message.frontend)
        else:
            self._followers.discard(message.frontend)
        if bool(self._followers) != before:
            self._news.gather(bool(self._followers))
