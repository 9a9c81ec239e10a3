"""When tokens are sent one by one and when a few may gather: the loop's load, measured by its own turns.

Streams ask it before they write and hand themselves over while they hold text back; it flushes them all by one
timer, which runs only while something is held.

INVARIANT: what a stream holds is flushed within `MOST_HOLD_S`, unless its socket stays full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

HOLD_S = 0.02
"""How long text gathers: shorter than a reader notices, longer than several steps of a loaded loop."""

MOST_HOLD_S = 0.1
"""And how long at most, where flushing every stream takes so long that it would fill all the time between."""

LAG_S = 0.005
"""A turn of the loop that takes longer than this makes every stream wait for the others' writes."""

BUSY_SHARE = 0.5
"""Of the loop's time: when writes take more, they slow down what makes the tokens. Gathering a few costs 20 ms at most
and is several times cheaper a token: nearly all of a write is the kernel's."""

CALM_SHARE = 0.25
"""Gathering ends when writing every piece by itself would take less than this."""

BUSY_WRITES = 64
"""Only a turn with this many writes is slow because of them; any other has another cause and gathering won't help."""


class Held(Protocol):
    """A stream that holds text back."""

    def flush(self) -> None:
        """Send what is held, or hand itself over again when it still cannot."""
        ...


class Pace:
    """One for all streams of a server. `is_lagging`: streams should let text gather."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.is_lagging = False
        self._now = now
        self._held: dict[Held, None] = {}
        self._hold_s = HOLD_S
        self._writes = 0
        self._pieces = 0  # held since the last turn that wrote
        self._turn_began = 0.0
        self._turn_ended = now()

    def wrote(self) -> None:
        """A stream is about to write to its socket."""
        if not self._writes:
            self._turn_began = self._now()
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._writes += 1

    def hold(self, stream: Held) -> None:
        """`stream` holds one more piece of text: call its `flush` soon."""
        self._pieces += 1
        if not self._held:
            asyncio.get_running_loop().call_later(self._hold_s, self._flush)
        self._held[stream] = None

    def _end_turn(self) -> None:
        now = self._now()
        took_s, since_s = now - self._turn_began, now - self._turn_ended
        # What it would take, or took, to write every piece by itself: as long a time for each as for one write now.
        alone_s = took_s * max(1.0, self._pieces / self._writes)
        share = alone_s / since_s if since_s > 0 else 0.0
        is_slow = took_s > LAG_S or share > (CALM_SHARE if self.is_lagging else BUSY_SHARE)
        self.is_lagging = self._writes >= BUSY_WRITES and is_slow
        # Writing then takes a fifth of the time at most; the rest is for making what is written.
        self._hold_s = min(MOST_HOLD_S, max(HOLD_S, 4 * took_s)) if self.is_lagging else HOLD_S
        self._writes = self._pieces = 0
        self._turn_ended = now

    def _flush(self) -> None:
        held, self._held = self._held, {}
        for stream in held:
            stream.flush()
