"""What a simulated client asks for: arrivals of sessions, each a request or a conversation of several.

`synthetic` and `trace_file` make traces; the driver plays them.

INVARIANT: a trace's requests do not depend on when its earlier ones were answered, only on what the answers were.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from asyncpage.messages import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request. `prompt`: all of it, int32. `is_last`: nobody waits for its answer to go on.

    `pause_s`: time between the answer before and this request.
    """

    prompt: Int32
    output_tokens: int
    is_last: bool = True
    pause_s: float = 0.0
    priority: int = 0


Session = Generator[Turn, Int32, None]
"""Yields turns; is sent the tokens of each answer, unless the turn was its last."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A client comes at a moment of the trace's time."""

    at_s: float
    session: Session


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times, made while they are read.

    `requests`: how many there will be, None when nobody knows. `has_times` False: all of them come at once, and
    whoever plays the trace must say how many may run together.
    """

    name: str
    arrivals: Iterable[Arrival]
    requests: int | None
    has_times: bool
