"""A recorded actor behaves as it would alone, and its film is told of everything, in order and at times that stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncpage.actors.base import Actor, ActorCell, Continuation
from asyncpage.actors.recorded import Recorded, Tapped
from asyncpage.clock import Clock
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.testing.clock import FakeClock


class Notes:
    """A film that writes down what it is told; its time moves by one with each cause."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._time = 0.0

    def now(self) -> float:
        return self._time

    def wall(self) -> float:
        return self._time + 1000

    def received(self, actor: str, message: object) -> None:
        self._cause("received", actor, message)

    def batch_ended(self, actor: str) -> None:
        self._cause("batch_ended", actor)

    def fired(self, actor: str, timer: int) -> None:
        self._cause("fired", actor, timer)

    def resumed(self, actor: str) -> None:
        self._cause("resumed", actor)

    def sent(self, actor: str, to: str, message: object) -> None:
        self.told.append(("sent", actor, to, message))

    def died(self, actor: str, error: Exception) -> None:
        self.told.append(("died", actor, str(error)))

    def _cause(self, *what: Any) -> None:
        self._time += 1
        self.told.append(what)


class Toy(Actor):
    """Answers with the time; "later" sets a timer, "cut" goes on twice, "odd" and "fatal" raise."""

    name = "toy"

    def __init__(self, out: Callable[[object], None]) -> None:
        self._out = out
        self._got: list[object] = []

    def started(self, clock: Clock) -> None:
        self._clock = clock

    def receive(self, message: object) -> Continuation | None:
        self._got.append(message)
        match message:
            case "later":
                self._clock.call_later(5.0, lambda: self._out(("timer", self._clock.now())))
            case "doomed":
                self._clock.call_later(5.0, self._raise)
            case "cut":
                return lambda: self._piece(1)
            case "odd" | "fatal":
                raise RuntimeError(str(message))
            case _:
                self._out((message, self._clock.now(), self._clock.now(), self._clock.wall()))
        return None

    def batch_end(self) -> None:
        got, self._got = self._got, []
        if "last" in got:
            raise RuntimeError("batch")
        self._out(("end", len(got)))

    def fail(self, message: object, error: Exception) -> bool:
        return message == "odd"

    def stats(self) -> dict[str, float]:
        return {"got": float(len(self._got))}

    def _piece(self, number: int) -> Continuation | None:
        self._out(("piece", number, self._clock.now()))
        return (lambda: self._piece(number + 1)) if number < 2 else None

    def _raise(self) -> None:
        raise RuntimeError("timer")


class Box:
    def __init__(self) -> None:
        self.got: list[object] = []

    def send(self, message: object) -> None:
        self.got.append(message)


class Stage:
    """A toy, recorded or not, in a cell of a loop that the test turns by hand."""

    def __init__(self, *, is_recorded: bool = True) -> None:
        self.notes = Notes()
        self.box = Box()
        self.clock = FakeClock()
        way = Tapped(self.notes, "toy", "box", self.box) if is_recorded else self.box
        toy = Toy(lambda message: way.send(message))
        self.actor: Actor = Recorded(toy, self.notes) if is_recorded else toy
        self.mailbox = Mailbox("toy", 100)
        self.cell = ActorCell(self.actor, self.mailbox, self.clock)

    async def run(self, *messages: object) -> None:
        running = asyncio.ensure_future(self.cell.run())
        for message in messages:
            self.mailbox.send(message)
        for _ in range(10):
            await asyncio.sleep(0)
        self.clock.advance(6.0)
        self.cell.stop()
        await running


async def test_a_film_is_told_of_causes_and_of_what_came_of_each() -> None:
    stage = Stage()
    await stage.run("a", "b")
    assert stage.notes.told == [
        ("received", "toy", "a"),
        ("sent", "toy", "box", ("a", 1.0, 1.0, 1001.0)),
        ("received", "toy", "b"),
        ("sent", "toy", "box", ("b", 2.0, 2.0, 1002.0)),
        ("batch_ended", "toy"),
        ("sent", "toy", "box", ("end", 2)),
    ]
    assert stage.box.got == [told[3] for told in stage.notes.told if told[0] == "sent"]


async def test_a_timer_is_told_by_its_number_and_fires_at_the_films_time() -> None:
    stage = Stage()
    await stage.run("later", "later")
    assert stage.notes.told[-4:] == [
        ("fired", "toy", 1),
        ("sent", "toy", "box", ("timer", 6.0)),
        ("batch_ended", "toy"),
        ("sent", "toy", "box", ("end", 0)),
    ]
    assert ("fired", "toy", 0) in stage.notes.told


async def test_each_piece_of_cut_work_is_told() -> None:
    stage = Stage()
    await stage.run("cut")
    causes = [told for told in stage.notes.told if told[0] != "sent"]
    assert causes == [
        ("received", "toy", "cut"),
        ("batch_ended", "toy"),
        ("resumed", "toy"),
        ("batch_ended", "toy"),
        ("resumed", "toy"),
        ("batch_ended", "toy"),
    ]
    assert ("piece", 2, 5.0) in stage.box.got


@pytest.mark.parametrize(("message", "text"), [("fatal", "fatal"), ("last", "batch"), ("doomed", "timer")])
async def test_a_death_is_told_with_its_error(message: str, text: str) -> None:
    stage = Stage()
    with pytest.raises(RuntimeError, match=text):
        await stage.run(message)
    assert stage.notes.told[-1] == ("died", "toy", text)


async def test_a_failed_message_is_no_death() -> None:
    stage = Stage()
    await stage.run("odd", "a")
    assert not [told for told in stage.notes.told if told[0] == "died"]


@pytest.mark.parametrize("messages", [("a", "odd", "b"), ("cut", "a"), ("later", "a", "later")])
async def test_an_actor_does_the_same_with_a_film_and_without(messages: tuple[str, ...]) -> None:
    with_film, without = Stage(), Stage(is_recorded=False)
    await with_film.run(*messages)
    await without.run(*messages)

    def timeless(got: list[Any]) -> list[Any]:
        return [message[0:1] if message[0] != "end" else message for message in got]

    assert timeless(with_film.box.got) == timeless(without.box.got)
    assert with_film.actor.stats() == without.actor.stats()
