"""The actor runtime on the standard loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs

from asyncpage.actors.base import Actor, ActorCell, Continuation
from asyncpage.clock import Clock
from asyncpage.errors import RequestError, UnknownMessage
from asyncpage.messages import Ping, Pong
from asyncpage.pipes.mailbox import Address, Mailbox, ThreadAddress
from asyncpage.testing.clock import FakeClock
from asyncpage.testing.threaded_cell import ThreadedCell

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Factory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log events are kept from the terminal, where tracebacks are slow to draw."""
    with capture_logs():
        yield


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def factory(request: pytest.FixtureRequest) -> Factory:
    made: Factory = request.param
    return made


@pytest.fixture
def run(factory: Factory) -> Run:
    def go(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return go


class Scribe(Actor):
    """Notes all that happens to it. A string message names what it does."""

    name = "scribe"

    def __init__(self) -> None:
        self.notes: list[object] = []
        self.forgivable: set[object] = set()

    def receive(self, message: object) -> Continuation | None:
        match message:
            case "raise" | "raise forgivable":
                raise ValueError(message)
            case "long a" | "long b" | "long c":
                return self.slices(message, 3)
            case "long raise":
                return lambda: self.receive("raise")
            case str():
                self.notes.append(message)
            case Exception():
                raise message
            case _:
                raise UnknownMessage(self, message)
        return None

    def slices(self, message: str, left: int) -> Continuation:
        def work() -> Continuation | None:
            self.notes.append(f"{message} {left}")
            return None if left == 1 else self.slices(message, left - 1)

        return work

    def batch_end(self) -> None:
        self.notes.append(".")

    def fail(self, message: object, error: Exception) -> bool:
        if isinstance(error, RequestError) or message in self.forgivable:
            self.notes.append(f"failed {message}")
            return True
        return False

    def started(self, clock: Clock) -> None:
        self.notes.append("started")

    def closed(self) -> None:
        self.notes.append("closed")

    def stats(self) -> Mapping[str, float]:
        return {"notes": float(len(self.notes))}


class Listener:
    def __init__(self) -> None:
        self.got: list[object] = []

    def send(self, message: object) -> None:
        self.got.append(message)


class House:
    """A cell with a scribe in it, running in a task of the test's loop."""

    def __init__(self) -> None:
        self.actor = Scribe()
        self.mailbox = Mailbox("scribe", 100)
        self.frontends = (Listener(), Listener())
        self.clock = FakeClock()
        self.cell = ActorCell(self.actor, self.mailbox, self.clock, self.frontends)

    async def __aenter__(self) -> House:
        self.task = asyncio.create_task(self.cell.run())
        await turns(2)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cell.stop()
        await asyncio.wait([self.task])

    def send(self, *messages: object) -> None:
        for message in messages:
            self.mailbox.send(message)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_that_waits_is_received_in_order_and_then_the_batch_ends_once(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("one", "two", "three")
            await turns()
            house.send("four")
            await turns()
        assert house.actor.notes == ["started", "one", "two", "three", ".", "four", ".", "closed"]

    run(main())


def test_an_idle_actor_is_never_called(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            await turns(50)
            assert house.clock.armed() == ()
        assert house.actor.notes == ["started", "closed"]

    run(main())


def test_a_continuation_waits_behind_the_mailbox_after_each_slice(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("long a", "one")
            await turns(1)
            house.send("two")
            await turns()
        assert house.actor.notes == [
            *("started", "one", ".", "long a 3", "."),
            *("two", ".", "long a 2", ".", "long a 1", "."),
            "closed",
        ]

    run(main())


def test_long_pieces_of_work_take_turns(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("long a", "long b")
            await turns(20)
        slices = [note for note in house.actor.notes if str(note).startswith("long")]
        assert slices == ["long a 3", "long b 3", "long a 2", "long b 2", "long a 1", "long b 1"]

    run(main())


def test_other_callbacks_of_the_loop_run_between_two_slices(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("long a")
            for _ in range(4):
                await asyncio.sleep(0)
                house.actor.notes.append("loop")
            await turns()
        notes = [note for note in house.actor.notes if note not in (".", "started", "closed")]
        gaps = [notes[at : at + 2] for at in range(len(notes) - 1)]
        assert ["long a 3", "long a 2"] not in gaps
        assert ["long a 2", "long a 1"] not in gaps

    run(main())


@pytest.mark.parametrize("culprit", [RequestError("too long"), "raise forgivable"])
def test_a_message_that_raises_fails_its_own_request_and_the_rest_of_the_batch_is_received(
    run: Run, culprit: object
) -> None:
    async def main() -> None:
        async with House() as house:
            house.actor.forgivable.add("raise forgivable")
            house.send("one", culprit, "two")
            await turns()
            assert not house.task.done()
        assert house.actor.notes == ["started", "one", f"failed {culprit}", "two", ".", "closed"]

    run(main())


def test_a_continuation_that_raises_fails_the_message_it_came_from(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.actor.forgivable.add("long raise")
            house.send("long raise", "one")
            await turns()
            assert not house.task.done()
        assert "failed long raise" in house.actor.notes

    run(main())


def test_the_log_names_a_failed_message_but_quotes_no_client_error(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send(RequestError("the prompt 'my secret' is too long"))
            await turns()

    structlog.reset_defaults()  # a set-up that another test left would hide what is below warnings
    with capture_logs() as events:
        run(main())
    failed = [event for event in events if event["event"] == "message.failed"]
    assert [(event["actor"], event["error"]) for event in failed] == [("scribe", "RequestError")]
    assert failed[0]["log_level"] == "info"
    assert "secret" not in str(failed)


@pytest.mark.parametrize(("message", "error"), [("raise", ValueError), (object(), UnknownMessage)])
def test_an_actor_that_cannot_fail_one_request_dies_and_reads_no_further(
    run: Run, message: object, error: type[Exception]
) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("one", message, "two")
            await turns()
            with pytest.raises(error):
                await house.task
            house.send("three")
            await turns()
        assert house.actor.notes == ["started", "one", "closed"]
        assert house.cell.unfinished == (message,)
        assert len(house.mailbox) == 2  # "two" and "three" wait for a successor

    run(main())


def test_a_death_names_the_work_that_was_cut_and_not_finished(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("long a", "long b")
            await turns(2)
            house.send("raise")
            await turns()
            with pytest.raises(ValueError, match="raise"):
                await house.task
        assert set(house.cell.unfinished) == {"raise", "long a", "long b"}
        assert house.cell.unfinished[0] == "raise"

    run(main())


def test_a_successor_fails_what_the_dead_had_begun_and_reads_on(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("raise", "one")
            await turns()
        heir = Scribe()
        heir.forgivable.add("raise")
        cell = ActorCell(heir, house.mailbox, house.clock, house.frontends)
        cell.inherit(house.cell, ValueError("raise"))
        task = asyncio.create_task(cell.run())
        await turns()
        cell.stop()
        await task
        assert heir.notes == ["started", "failed raise", ".", "one", ".", "closed"]

    run(main())


def test_an_error_at_the_batchs_end_kills_the_actor(run: Run) -> None:
    class Careless(Scribe):
        def batch_end(self) -> None:
            raise KeyError("at the end")

    async def main() -> None:
        actor, mailbox = Careless(), Mailbox("careless", 10)
        mailbox.send("one")
        with pytest.raises(KeyError, match="at the end"):
            await ActorCell(actor, mailbox, FakeClock()).run()

    run(main())


def test_an_actor_that_cannot_start_dies_at_once_and_is_closed(run: Run) -> None:
    class Unready(Scribe):
        def started(self, clock: Clock) -> None:
            raise OSError("no descriptor left")

    async def main() -> None:
        actor = Unready()
        with pytest.raises(OSError, match="no descriptor left"):
            await ActorCell(actor, Mailbox("unready", 10), FakeClock()).run()
        assert actor.notes == ["closed"]

    run(main())


def test_a_stopped_cell_drops_what_still_waits_and_awaits_the_actors_closing(run: Run) -> None:
    class Slow(Scribe):
        async def closed(self) -> None:  # type: ignore[override]  # Scribe's returns at once
            await turns(3)
            self.notes.append("closed slowly")

    async def main() -> None:
        actor, mailbox = Slow(), Mailbox("slow", 10)
        cell = ActorCell(actor, mailbox, FakeClock())
        task = asyncio.create_task(cell.run())
        await turns(2)
        mailbox.send("one")
        cell.stop()
        await task
        assert actor.notes == ["started", "closed slowly"]

    run(main())


def test_ping_is_answered_to_its_front_end_after_what_came_before_it(run: Run) -> None:
    async def main() -> None:
        async with House() as house:
            house.send("one", Ping(token=7, frontend=1), "two")
            await turns()
        first, second = house.frontends
        assert first.got == []
        assert second.got == [Pong(token=7, actor="scribe", stats={"notes": 2.0})]

    run(main())


def test_a_timer_runs_as_a_batch_of_its_own_and_its_error_kills_the_actor(run: Run) -> None:
    class Timed(Scribe):
        def started(self, clock: Clock) -> None:
            clock.call_later(1.0, lambda: self.notes.append("tick"))
            clock.call_later(2.0, self.burst)

        def burst(self) -> None:
            raise ValueError("raise")

    async def main() -> None:
        clock, actor = FakeClock(), Timed()
        task = asyncio.create_task(ActorCell(actor, Mailbox("timed", 10), clock).run())
        await turns(2)
        clock.advance(1.0)
        assert actor.notes == ["tick", "."]
        clock.advance(1.0)
        with pytest.raises(ValueError, match="raise"):
            await task

    run(main())


def test_a_timer_that_outlives_its_actor_does_nothing(run: Run) -> None:
    class Timed(Scribe):
        def started(self, clock: Clock) -> None:
            clock.call_later(1.0, lambda: self.notes.append("tick"))

    async def main() -> None:
        clock, actor = FakeClock(), Timed()
        cell = ActorCell(actor, Mailbox("timed", 10), clock)
        task = asyncio.create_task(cell.run())
        await turns(2)
        cell.stop()
        await task
        clock.advance(1.0)
        assert actor.notes == ["closed"]

    run(main())


class Adder(Actor):
    """Adds one and passes on, until a number is reached."""

    def __init__(self, name: str, until: int, done: Callable[[], None]) -> None:
        self.name = name
        self.until = until
        self.done = done
        self.next: Address
        self.seen: list[int] = []

    def receive(self, message: object) -> None:
        assert isinstance(message, int)
        self.seen.append(message)
        if message >= self.until:
            self.done()
        else:
            self.next.send(message + 1)


def test_actors_that_know_only_addresses_run_each_on_its_own_loop_in_its_own_thread(run: Run, factory: Factory) -> None:
    async def main() -> None:
        loop, finished = asyncio.get_running_loop(), asyncio.Event()

        def done() -> None:
            loop.call_soon_threadsafe(finished.set)

        cells = [ThreadedCell(Mailbox(f"adder {number}", 10), factory) for number in range(3)]
        actors = [Adder(f"adder {number}", 999, done) for number in range(3)]
        for actor, following in zip(actors, (*cells[1:], cells[0]), strict=True):
            actor.next = following.address
        for actor, cell in zip(actors, cells, strict=True):
            cell.start(actor, FakeClock())
        cells[0].address.send(0)
        await finished.wait()
        for cell in cells:
            cell.stop()
        assert [actor.seen for actor in actors] == [list(range(first, 1000, 3)) for first in range(3)]

    run(main())


def test_the_death_of_a_threaded_actor_is_raised_where_it_is_stopped(factory: Factory) -> None:
    cell = ThreadedCell(Mailbox("scribe", 10), factory)
    cell.start(Scribe(), FakeClock())
    cell.address.send("raise")
    cell.join()
    with pytest.raises(ValueError, match="raise"):
        cell.stop()


def test_an_overflow_by_a_message_from_another_thread_kills_the_reader(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("scribe", 1)
        address = ThreadAddress(mailbox, asyncio.get_running_loop())
        cell = ActorCell(Scribe(), mailbox, FakeClock())
        task = asyncio.create_task(cell.run())
        await turns(2)
        address.send("crosses first")
        asyncio.get_running_loop().call_soon(lambda: None)
        mailbox.send("is there already")  # its wake-up comes after the crossing
        with pytest.raises(Exception, match="scribe is full"):
            await task

    run(main())
