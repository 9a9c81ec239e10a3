"""What every actor understands."""

from __future__ import annotations

from collections.abc import Mapping

from asyncpage.records import record


@record(frozen=True, slots=True)
class Ping:
    """Are you turning? Answered with `Pong` by the runtime after the mailbox before it was worked off."""

    token: int
    frontend: int


@record(frozen=True, slots=True)
class Pong:
    """An actor turns; `stats` are its gauges and counters at this moment, plain numbers by name."""

    token: int
    actor: str
    stats: Mapping[str, float]
