"""A cache feed: what the prefix cache told and one follower has not read yet.

The front end puts `CacheEvents` in; a follower (the event stream of the server, or a Python program) takes them out.
Following costs the engine nothing but memory, so that is bounded: what finds no room is lost, and the follower is told
how much where it is missing. Waiting for a slow follower instead would make every request wait for it.

INVARIANT: what a follower is given, with every `EventsLost` counted as the events it stands for, is what was put in,
in order and up to a point.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from asyncpage.messages import CacheEvent

MOST_WAITING = 8192
"""Events kept for one follower, about 3 MB: what a busy pool tells in some seconds."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The follower was too slow: `count` events are missing here, so what it believes of the cache may be wrong."""

    count: int


class CacheFeed:
    """One follower's events, for one reader, on the front end's loop.

    `on_close` is called once, with the feed, when nothing more should be put in. Iterating closes it at the end.
    """

    def __init__(self, on_close: Callable[[CacheFeed], None], most_waiting: int = MOST_WAITING) -> None:
        self._on_close = on_close
        self._most_waiting = most_waiting
        self._waiting: deque[CacheEvent | EventsLost] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, events: Sequence[CacheEvent]) -> None:
        """Keep these for the follower, as far as there is room; a closed feed drops them."""
        if self._is_closed:
            return
        room = max(0, self._most_waiting - len(self._waiting))
        self._waiting.extend(events[:room])
        if lost := len(events[room:]):
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, EventsLost):
                self._waiting[-1] = EventsLost(last.count + lost)
            else:
                self._waiting.append(EventsLost(lost))  # the one that may stand above the bound
        self._arrived.set()

    async def take(self, most: int) -> tuple[CacheEvent | EventsLost, ...]:
        """The next ones, at most `most`, as soon as there is any; none when the feed is closed and read."""
        while not self._waiting and not self._is_closed:
            self._arrived.clear()
            await self._arrived.wait()
        return tuple(self._waiting.popleft() for _ in range(min(most, len(self._waiting))))

    def close(self) -> None:
        """No more events come; what waits can still be taken. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._arrived.set()
            self._on_close(self)

    async def __aiter__(self) -> AsyncIterator[CacheEvent | EventsLost]:
        try:
            while news := await self.take(1):
                yield news[0]
        finally:
            self.close()
