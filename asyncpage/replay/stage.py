"""Today's scheduler and KV manager without their surroundings: given recorded causes, they decide again.

The house is built as `engine.py` builds it, from the recorded settings and handshake, with this as its film. What lies
outside the two actors does not run: what it said is in the journal. Messages between the two are today's, delivered
where the recorded ones were; timers fire where they fired.

INVARIANT: an actor is given recorded causes at recorded times, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from asyncpage.actors.base import Actor, Continuation
from asyncpage.core.block_names import chain_names
from asyncpage.errors import JournalError, ProtocolError
from asyncpage.house import Text, build
from asyncpage.messages import Admit, Answer, Ask, Question, Shelved, Stored
from asyncpage.pipes.journal.dialect import MESSAGES
from asyncpage.pipes.journal.record import (
    ACTORS,
    BATCH_END,
    FIRED,
    RECEIVED,
    RESUMED,
    TAKEN,
    Head,
    Record,
    reading_dialect,
)
from asyncpage.replay.block_names import BlockNames
from asyncpage.text.artificial_vocabulary import artificial_vocabulary
from asyncpage.text.tokenizer import Tokenizer


class Stage:
    """`decided`: messages sent since somebody looked, each with its sender and receiver; `deaths`: actors and errors.

    `cause`: what the last perform was about, in words. `requests`: choices that asked for a place so far. `labels`:
    their requests' client-visible ids, by request. `dialect`: writes today's messages as recorded ones were written,
    blocks under `names`.
    """

    def __init__(self, head: Head) -> None:
        """Errors: `UsageError` when today's version refuses the recorded settings."""
        self.decided: deque[tuple[str, str, object]] = deque()
        self.deaths: deque[tuple[str, Exception]] = deque()
        self.cause = "nothing"
        self.requests = 0
        self.labels: dict[int, str] = {}
        self._head = head
        self.names = BlockNames(head.handshake.block_size)
        self.dialect = reading_dialect(head, self.names)
        self._time = 0.0
        self._on_the_way: Mapping[str, deque[object]] = {name: deque() for name in ACTORS}
        self._rests: Mapping[str, deque[tuple[object, Continuation]]] = {name: deque() for name in ACTORS}
        self._timers: Mapping[str, _Timers] = {name: _Timers(self) for name in ACTORS}
        # The text is never looked at: what the two actors know of it are the ids that end an answer.
        vocabulary = replace(artificial_vocabulary(), end_ids=head.eos_ids)
        self.house = build(
            head.config,
            head.handshake,
            Text(Tokenizer(vocabulary), None),
            _Timers(self),
            head.seed,
            lambda name: _NOWHERE,
            self,
        )
        self._actors: Mapping[str, Actor] = {actor.name: actor for actor in self.house.actors if actor.name in ACTORS}
        for name, actor in self._actors.items():
            actor.started(self._timers[name])

    def perform(self, record: Record) -> bool:
        """Give an actor its cause; False when today there is none: no message is on the way, no such timer is set.

        Errors: `JournalError` when today's messages cannot be read from the recorded one.
        """
        name = ACTORS[record.actor]
        actor = self._actors[name]
        self._time = record.time
        message: object = None
        if record.kind == BATCH_END:
            self.cause = f"the {name} had worked off its mailbox"
            self._attempt(name, actor.batch_end)
        elif record.kind == RECEIVED:
            message = self._message(record)
            self.cause = f"the {name} got {_in_short(message)}"
            self._attempt(name, partial(actor.receive, message), message)
        elif record.kind == TAKEN:
            if not self._on_the_way[name]:
                return False
            message = self._on_the_way[name].popleft()
            self.cause = f"the {name} got {_in_short(message)}"
            self._attempt(name, partial(actor.receive, message), message)
        elif record.kind == FIRED:
            callback = self._timers[name].pending.pop(record.timer, None)
            if callback is None:
                return False
            self.cause = f"timer {record.timer} of the {name} fired"
            self._attempt(name, callback)
        elif record.kind == RESUMED:
            if not self._rests[name]:
                return False
            message, work = self._rests[name].popleft()
            self.cause = f"the {name} went on with {_in_short(message)}"
            self._attempt(name, work, message)
        return True

    def ask(self, question: Question) -> object:
        """The KV manager's answer to a question that is in no journal; questions change nothing."""
        before = len(self.decided)
        self._attempt("kv_manager", partial(self._actors["kv_manager"].receive, Ask(0, 0, question)))
        answer: object = None
        while len(self.decided) > before:
            message = self.decided.pop()[2]
            if isinstance(message, Answer):
                answer = message.value
        return answer

    # --- the film that the actors see --------------------------------------------------------------------------------

    def now(self) -> float:
        return self._time

    def wall(self) -> float:
        return self._time + self._head.wall_offset

    def sent(self, actor: str, to: str, message: object) -> None:
        self.decided.append((actor, to, message))
        if to in self._on_the_way:
            self._on_the_way[to].append(message)

    def died(self, actor: str, error: Exception) -> None:
        self.deaths.append((actor, error))

    def received(self, actor: str, message: object) -> None:
        """`perform` knows, here and below."""

    def batch_ended(self, actor: str) -> None: ...

    def fired(self, actor: str, timer: int) -> None: ...

    def resumed(self, actor: str) -> None: ...

    # --- what a cell does --------------------------------------------------------------------------------------------

    def _attempt(self, name: str, work: Callable[[], Continuation | None], message: object = None) -> None:
        """As a cell runs an actor's code: an error fails the message's request, or kills the actor."""
        try:
            rest = work()
        except Exception as error:
            if message is not None:
                self._actors[name].fail(message, error)  # which tells of a death, as everything else does
            return
        if rest is not None:
            self._rests[name].append((message, rest))

    def _message(self, record: Record) -> object:
        """The recorded input, with today's names of blocks."""
        try:
            message: object = self.dialect.rebuild(MESSAGES[record.name], record.plain)
        except (KeyError, ProtocolError) as error:
            raise JournalError(f"today's version does not take the recorded {record.name}: {error}") from None
        if isinstance(message, Admit):
            self.requests += message.sampling.n
            self.labels.update(dict.fromkeys(message.requests, message.options.label))
            if message.names:
                options, block_size = message.options, self._head.handshake.block_size
                names = chain_names(message.tokens, block_size, salt=options.cache_salt, adapter=options.adapter)
                message = replace(message, names=names[: len(message.names)])
        elif isinstance(message, Shelved):
            message = Shelved(self.names.find(message.labels))
        elif isinstance(message, Stored):
            message = replace(message, removed=self.names.find_keys(message.removed))
        return message


class _Timers:
    """The clock of one actor: its timers wait until a record says that they fired."""

    def __init__(self, stage: Stage) -> None:
        self.now, self.wall = stage.now, stage.wall
        self.pending: dict[int, Callable[[], None]] = {}
        self._set = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        self.pending[self._set] = callback
        self._set += 1
        return _Timer(self.pending, self._set - 1)


class _Timer:
    def __init__(self, pending: dict[int, Callable[[], None]], number: int) -> None:
        self._pending = pending
        self._number = number

    def cancel(self) -> None:
        self._pending.pop(self._number, None)


class _Nowhere:
    """Where messages go that the film was told of."""

    def send(self, message: object) -> None: ...


_NOWHERE = _Nowhere()


def _in_short(message: object) -> str:
    """A message's class, and which one of its kind it is."""
    number = getattr(message, "number", getattr(message, "request", None))
    return type(message).__name__ + ("" if number is None else f" {number}")
