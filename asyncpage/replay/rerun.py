"""Compares what today's code decides with what a journal says was decided.

Reads the journal, gives its causes to a `Stage`, and looks for each recorded decision among those made today.

INVARIANT: the first decision that differs is found, whichever side it is missing on; everything before it was equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncpage.errors import JournalError
from asyncpage.messages import Fetch, Reserve, Store
from asyncpage.pipes.journal.dialect import shapes
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import ACTORS, DIED, ROOT, SENT, Record
from asyncpage.pipes.record import unpack_plain
from asyncpage.replay.difference import Decision, Difference
from asyncpage.replay.stage import Stage
from asyncpage.replay.view import differences, view

_LOOK_EVERY = 1024  # records between two calls of `on_progress`


@dataclass(frozen=True, slots=True)
class Summary:
    """What was replayed. `seconds`: of the recording; `decisions`: messages sent."""

    steps: int
    requests: int
    decisions: int
    seconds: float


class Rerun:
    """One replay. Afterwards `stage` is as it was at the recording's end, or at the difference."""

    def __init__(self, reader: JournalReader) -> None:
        """Errors: `JournalError` when the journal's beginning is gone."""
        if not reader.is_whole:
            raise JournalError(
                f"{reader.paths[-1]} has lost its beginning: its oldest segment is number {reader.head.segment}, and "
                "nobody knows what state the ones before left. It can be read with --list; record with a larger "
                "--journal-bytes to replay"
            )
        self.stage = Stage(reader.head)
        self._reader = reader
        self._dialect = self.stage.dialect
        self._today = shapes()
        self._steps = self._decisions = self._records = self._step = 0
        self._began: float | None = None
        self._on_decision: Callable[[object], None] = lambda message: None

    def run(
        self,
        on_progress: Callable[[int], None] = lambda done: None,
        on_decision: Callable[[object], None] = lambda message: None,
    ) -> Difference | None:
        """Everything up to the first difference; None when there is none.

        `on_progress`: bytes of the journal read. `on_decision`: a message that was sent as recorded, when all that its
        cause brought about has been done.
        Errors: `JournalError` when the journal is damaged, or today's version cannot read its messages.
        """
        self._on_decision = on_decision
        for record in self._reader.records():
            self._records += 1
            if record.kind == SENT:
                found = self._compare(record)
            elif record.kind == DIED:
                found = self._compare_death(record)
            elif record.kind == ROOT:
                self._learn_root(record)
                continue
            else:
                found = self._unrecorded() or self._perform(record)
            if found is not None:
                return found
            if self._records % _LOOK_EVERY == 0:
                on_progress(self._reader.bytes_read)
        # Of what the last cause brings about, the end of the recording may have cut something off: nothing to compare.
        on_progress(self._reader.size)
        return None

    def summary(self) -> Summary:
        """How far it came."""
        seconds = 0.0 if self._began is None else self.stage.now() - self._began
        return Summary(self._steps, self.stage.requests, self._decisions, seconds)

    def _perform(self, record: Record) -> Difference | None:
        if self._began is None:
            self._began = record.time
        if record.name == "Shelved":  # of what lies in the folder, the journal may say later whose it is
            for later in JournalReader(self._reader.paths[-1]).records():
                if later.kind == ROOT:
                    self._learn_root(later)
        if self.stage.perform(record):
            return None
        return self._difference(Decision("recording", ACTORS[record.actor], "a cause that is not there today"), None)

    def _learn_root(self, record: Record) -> None:
        self.stage.names.learn_root(record.packed, salt=record.name, adapter=record.to)

    def _compare(self, record: Record) -> Difference | None:
        recorded = Decision(ACTORS[record.actor], record.to, record.name)
        if not self.stage.decided:
            return self._difference(self._with_fields(recorded, record), self._death())
        actor, to, message = self.stage.decided.popleft()
        today = Decision(actor, to, type(message).__name__)
        self._decisions += 1
        if isinstance(message, Reserve):
            self._step = message.number
        elif today.name == "Step":
            self._steps += 1
        if isinstance(message, Store | Fetch) and today == recorded:
            label = view(record.name, unpack_plain(record.packed), self._reader.head.shapes)["label"]
            self.stage.names.learn((label["name"], label["parent"]), message.label)
        packed = self._dialect.pack(message)
        if today == recorded and (packed == record.packed or self._is_equal_by_name(record, packed)):
            self._on_decision(message)
            return None
        fields = view(today.name, unpack_plain(packed), self._today)
        return self._difference(self._with_fields(recorded, record), Decision(actor, to, today.name, fields))

    def _is_equal_by_name(self, record: Record, packed: bytes) -> bool:
        """Bytes differ where another version's messages have other fields, too: then those of both decide."""
        if self._today == self._reader.head.shapes:
            return False
        recorded = view(record.name, unpack_plain(record.packed), self._reader.head.shapes)
        return not any(differences(recorded, view(record.name, unpack_plain(packed), self._today)))

    def _compare_death(self, record: Record) -> Difference | None:
        recorded = Decision(ACTORS[record.actor], "", record.name)
        today = self._death() or self._next_decided()
        return None if today == recorded else self._difference(recorded, today)

    def _unrecorded(self) -> Difference | None:
        """Something was decided today that the recording does not have before its next cause."""
        today = self._next_decided() or self._death()
        return None if today is None else self._difference(None, today)

    def _next_decided(self) -> Decision | None:
        if not self.stage.decided:
            return None
        actor, to, message = self.stage.decided.popleft()
        name = type(message).__name__
        return Decision(actor, to, name, view(name, unpack_plain(self._dialect.pack(message)), self._today))

    def _death(self) -> Decision | None:
        if not self.stage.deaths:
            return None
        actor, error = self.stage.deaths.popleft()
        return Decision(actor, "", f"{type(error).__name__}: {error}")

    def _with_fields(self, decision: Decision, record: Record) -> Decision:
        fields = view(record.name, unpack_plain(record.packed), self._reader.head.shapes)
        return Decision(decision.actor, decision.to, decision.name, fields)

    def _difference(self, recorded: Decision | None, today: Decision | None) -> Difference:
        return Difference(self._step, self._records, self.summary().seconds, self.stage.cause, recorded, today)
