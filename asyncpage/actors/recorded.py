"""Records an actor from outside: a film is told of all that it is given and of all that it sends.

The house wraps the scheduler and the KV manager with it when a journal is wanted, and a replay wraps them the same
way with a film that compares; without either they run bare. The actor sees the film's time, which stands still between
two causes, so that whatever it decides by the clock is decided again in a replay.

INVARIANT: the film is told of a cause before the actor is given it, and of every message in between; the actor's own
behaviour is what it is without a film.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from asyncpage.actors.base import Actor, Continuation
from asyncpage.clock import Clock, Timer
from asyncpage.pipes.mailbox import Address


class Film(Protocol):
    """What is told of recorded actors, each by its name; and whose time they see."""

    def now(self) -> float:
        """The time of the cause at hand, on the engine's clock."""
        ...

    def wall(self) -> float:
        """The same as seconds since the epoch."""
        ...

    def received(self, actor: str, message: object) -> None:
        """It is given a message."""
        ...

    def batch_ended(self, actor: str) -> None:
        """All that waited has been given."""
        ...

    def fired(self, actor: str, timer: int) -> None:
        """A timer fires, which was the `timer`th that it set."""
        ...

    def resumed(self, actor: str) -> None:
        """The rest of a cut piece of work runs, of those that wait the oldest."""
        ...

    def sent(self, actor: str, to: str, message: object) -> None:
        """It sends a message."""
        ...

    def died(self, actor: str, error: Exception) -> None:
        """It died of an error."""
        ...


class Recorded(Actor):
    """An actor with a film. What it is asked beside messages (`stats`) goes straight through."""

    def __init__(self, inner: Actor, film: Film) -> None:
        self.name = inner.name
        self._inner = inner
        self._film = film

    def receive(self, message: object) -> Continuation | None:
        self._film.received(self.name, message)
        return self._cut(self._inner.receive(message))

    def batch_end(self) -> None:
        self._film.batch_ended(self.name)
        try:
            self._inner.batch_end()
        except Exception as error:
            self._film.died(self.name, error)
            raise

    def fail(self, message: object, error: Exception) -> bool:
        is_its_own = self._inner.fail(message, error)
        if not is_its_own:
            self._film.died(self.name, error)
        return is_its_own

    def stats(self) -> Mapping[str, float]:
        return self._inner.stats()

    def started(self, clock: Clock) -> None:
        self._inner.started(_FilmClock(self._film, self.name, clock))

    def closed(self) -> Awaitable[None] | None:
        return self._inner.closed()

    def _cut(self, rest: Continuation | None) -> Continuation | None:
        if rest is None:
            return None
        work = rest  # narrowed, for the closure

        def resume() -> Continuation | None:
            self._film.resumed(self.name)
            return self._cut(work())

        return resume


class _FilmClock:
    """The clock that a recorded actor sees: the film's time, and timers whose firing the film is told of."""

    def __init__(self, film: Film, actor: str, clock: Clock) -> None:
        self._film = film
        self._actor = actor
        self._call_later = clock.call_later
        self._timers = 0
        self.now = film.now
        self.wall = film.wall

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = self._timers
        self._timers += 1

        def fire() -> None:
            self._film.fired(self._actor, timer)
            try:
                callback()
            except Exception as error:
                self._film.died(self._actor, error)
                raise

        return self._call_later(delay_s, fire)


class Tapped:
    """The way from a recorded actor to another: the film is told of each message before it is sent.

    Without an `address` only the film is told.
    """

    __slots__ = ("_actor", "_address", "_film", "_to")

    def __init__(self, film: Film, actor: str, to: str, address: Address | None) -> None:
        self._film = film
        self._actor = actor
        self._to = to
        self._address = address

    def send(self, message: object) -> None:
        self._film.sent(self._actor, self._to, message)
        if self._address is not None:
            self._address.send(message)
