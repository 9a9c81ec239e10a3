"""The supervisor on the standard loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from asyncpage.actors.base import Actor, Continuation
from asyncpage.actors.supervisor import Supervisor
from asyncpage.clock import Clock
from asyncpage.errors import ActorDied
from asyncpage.messages import Ping
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.testing.clock import FakeClock

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log events are kept from the terminal, where tracebacks are slow to draw."""
    with capture_logs():
        yield


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def go(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return go


class Worker(Actor):
    """Writes into the house's diary. 'bad' kills it, unless it may answer for it: then that is written down."""

    def __init__(self, name: str, diary: list[str], *, answers: bool = False) -> None:
        self.name = name
        self.diary = diary
        self.answers = answers

    def started(self, clock: Clock) -> None:
        self.diary.append(f"{self.name} started")

    def receive(self, message: object) -> Continuation | None:
        if message == "bad":
            raise ValueError("a bad message")
        if message == "long":
            return lambda: self.receive("long")
        self.diary.append(f"{self.name} got {message}")
        return None

    def fail(self, message: object, error: Exception) -> bool:
        if self.answers:
            self.diary.append(f"{self.name} failed {message}")
        return self.answers

    async def closed(self) -> None:
        await asyncio.sleep(0)
        self.diary.append(f"{self.name} closed")


class House:
    def __init__(self, *, max_restarts: int = 5) -> None:
        self.clock = FakeClock()
        self.diary: list[str] = []
        self.deaths: list[tuple[str, str]] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.supervisor = Supervisor(self.clock, self.on_death, max_restarts=max_restarts)

    def on_death(self, name: str, error: Exception) -> None:
        self.deaths.append((name, str(error)))
        self.diary.append(f"told of {name}")

    def add(self, name: str, factory: Callable[[], Actor] | None = None) -> None:
        self.mailboxes[name] = Mailbox(name, 100)
        self.supervisor.add(Worker(name, self.diary), self.mailboxes[name], factory=factory)

    async def begin(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.supervisor.run())
        await turns()
        return task


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_actors_start_and_stop_one_after_another_the_last_first(run: Run) -> None:
    async def main() -> None:
        house = House()
        for name in ("kv", "scheduler", "tokenizer"):
            house.add(name)
        task = await house.begin()
        house.mailboxes["scheduler"].send("hello")
        await turns()
        await house.supervisor.stop()
        await task
        assert house.diary == [
            *("kv started", "scheduler started", "tokenizer started", "scheduler got hello"),
            *("tokenizer closed", "scheduler closed", "kv closed"),
        ]
        assert house.deaths == []

    run(main())


def test_a_death_is_told_also_when_it_cannot_be_logged(run: Run) -> None:
    def broken(logger: object, name: str, event: Any) -> Any:
        if event["event"] == "actor.died":
            raise OSError("nobody reads this log")
        return event

    async def main() -> None:
        house = House()
        house.add("kv")
        task = await house.begin()
        house.mailboxes["kv"].send("bad")
        with capture_logs(processors=[broken]):
            await asyncio.wait([task])
        assert house.deaths == [("kv", "a bad message")]
        assert not isinstance(task.exception(), asyncio.CancelledError)

    run(main())


def test_a_death_is_told_before_anything_stops_and_comes_out_of_run(run: Run) -> None:
    async def main() -> None:
        house = House()
        for name in ("kv", "scheduler", "tokenizer"):
            house.add(name)
        task = await house.begin()
        house.diary.clear()
        house.mailboxes["scheduler"].send("bad")
        with pytest.raises(ActorDied, match="scheduler died: ValueError: a bad message") as caught:
            await task
        assert isinstance(caught.value.__cause__, ValueError)
        assert house.diary == ["scheduler closed", "told of scheduler", "tokenizer closed", "kv closed"]
        for mailbox in house.mailboxes.values():
            for number in range(1000):
                mailbox.send(number)  # nobody reads it any more, and nobody who sends dies of that

    run(main())


def test_only_the_first_of_two_deaths_is_told(run: Run) -> None:
    async def main() -> None:
        house = House()
        house.add("kv")
        house.add("scheduler")
        task = await house.begin()
        house.mailboxes["kv"].send("bad")
        house.mailboxes["scheduler"].send("bad")
        with pytest.raises(ActorDied, match="kv died"):
            await task
        assert house.deaths == [("kv", "a bad message")]

    run(main())


def test_the_house_stops_in_order_even_when_nobody_could_be_told(run: Run) -> None:
    async def main() -> None:
        house = House()

        def broken(name: str, error: Exception) -> None:
            raise OSError("no one at home")

        house.supervisor = Supervisor(house.clock, broken)
        house.add("kv")
        house.add("scheduler")
        task = await house.begin()
        house.mailboxes["kv"].send("bad")
        with pytest.raises(ActorDied, match="kv died"):
            await task
        assert "scheduler closed" in house.diary

    run(main())


def test_a_stateless_actor_is_rebuilt_and_reads_on_where_the_dead_one_stopped(run: Run) -> None:
    async def main() -> None:
        house = House()
        house.add("scheduler")
        house.add("tokenizer", lambda: Worker("second", house.diary, answers=True))
        task = await house.begin()
        house.diary.clear()
        for message in ("one", "long", "bad", "two"):
            house.mailboxes["tokenizer"].send(message)
        await turns()
        assert house.diary == [
            *("tokenizer got one", "tokenizer closed"),
            *("second started", "second failed bad", "second failed long", "second got two"),
        ]
        assert house.deaths == []
        await house.supervisor.stop()
        await task

    run(main())


def test_restarts_in_a_row_back_off_until_the_budget_is_spent(run: Run) -> None:
    async def main() -> None:
        house = House(max_restarts=3)
        house.add("tokenizer", lambda: Worker("tokenizer", house.diary))
        task = await house.begin()
        waits: list[float] = []
        for _ in range(4):
            house.mailboxes["tokenizer"].send("bad")
            await turns()
            waits += house.clock.armed()
            house.clock.advance(sum(house.clock.armed()))
            await turns()
        assert waits == [0.5, 1.0]  # the first restart is at once, the fourth death the last
        with pytest.raises(ActorDied, match="tokenizer died"):
            await task
        assert house.deaths == [("tokenizer", "a bad message")]

    run(main())


def test_deaths_far_apart_are_not_counted_together(run: Run) -> None:
    async def main() -> None:
        house = House(max_restarts=1)
        house.add("tokenizer", lambda: Worker("tokenizer", house.diary))
        task = await house.begin()
        for _ in range(5):
            house.clock.advance(60.0)
            house.mailboxes["tokenizer"].send("bad")
            await turns()
        assert house.deaths == []
        await house.supervisor.stop()
        await task

    run(main())


def test_a_stop_during_the_backoff_does_not_wait_for_it(run: Run) -> None:
    async def main() -> None:
        house = House()
        house.add("tokenizer", lambda: Worker("tokenizer", house.diary))
        task = await house.begin()
        for _ in range(2):
            house.mailboxes["tokenizer"].send("bad")
            await turns()
        assert house.clock.armed() == (0.5,)
        await house.supervisor.stop()
        await task
        assert house.clock.armed() == ()

    run(main())


def test_a_successor_that_cannot_be_built_counts_as_a_death(run: Run) -> None:
    async def main() -> None:
        house = House(max_restarts=1)

        def factory() -> Actor:
            raise OSError("no memory for tables")

        house.add("tokenizer", factory)
        task = await house.begin()
        house.mailboxes["tokenizer"].send("bad")
        with pytest.raises(ActorDied, match="no memory for tables"):
            await task

    run(main())


def test_an_actor_that_cannot_be_closed_does_not_keep_the_others_open(run: Run) -> None:
    class Stuck(Worker):
        async def closed(self) -> None:
            raise OSError("the descriptor is gone")

    async def main() -> None:
        house = House()
        house.add("kv")
        house.supervisor.add(Stuck("server", house.diary), Mailbox("server", 10))
        task = await house.begin()
        await house.supervisor.stop()
        await task
        assert "kv closed" in house.diary
        assert house.deaths == []

    run(main())


def test_cancelling_run_closes_every_actor(run: Run) -> None:
    async def main() -> None:
        house = House()
        house.add("kv")
        house.add("scheduler")
        task = await house.begin()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {"kv closed", "scheduler closed"} <= set(house.diary)

    run(main())


def test_front_ends_get_their_pongs_through_the_supervisors_cells(run: Run) -> None:
    class Frontend:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def send(self, message: object) -> None:
            self.got.append(message)

    async def main() -> None:
        house, frontend = House(), Frontend()
        mailbox = Mailbox("kv", 10)
        house.supervisor.add(Worker("kv", house.diary), mailbox, (frontend,))
        task = await house.begin()
        mailbox.send(Ping(token=3, frontend=0))
        await turns()
        assert [(pong.actor, pong.token) for pong in frontend.got] == [("kv", 3)]
        await house.supervisor.stop()
        await task

    run(main())


def test_an_actor_cannot_be_added_to_a_running_house(run: Run) -> None:
    async def main() -> None:
        house = House()
        task = await house.begin()
        with pytest.raises(RuntimeError, match="before the supervisor runs"):
            house.add("late")
        await house.supervisor.stop()
        await task

    run(main())


def test_a_house_stopped_before_it_ran_closes_its_actors_without_starting_them(run: Run) -> None:
    async def main() -> None:
        house = House()
        house.add("kv")
        house.add("executor")
        await house.supervisor.stop()
        await house.supervisor.run()
        assert house.diary == ["executor closed", "kv closed"]

    run(main())
