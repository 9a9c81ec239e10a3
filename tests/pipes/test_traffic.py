"""What is seen of the mailboxes while somebody watches, with numbers counted by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import numpy as np

from asyncpage.messages import EMPTY, EMPTY_BLOCKS, EMPTY_TRIPLES, ExecutorLost, Granted, Int32, Ping, Step, StepDone
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.pipes.traffic import MOST_STEPS, StepMark, Traffic


class Reader:
    """Reads a mailbox as an actor's cell does: what waits when its turn begins."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.read: list[list[object]] = []
        self._mailbox = mailbox
        self._queue: deque[object] = mailbox.bind(asyncio.get_running_loop(), self._turn, lambda error: None)

    def _turn(self) -> None:
        self.read.append([self._queue.popleft() for _ in range(len(self._queue))])
        self._mailbox.rest()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def ints(*numbers: int) -> Int32:
    return np.array(numbers, dtype=np.int32)


def step(number: int, *counts: int, epoch: int = 1) -> Step:
    return Step(number, epoch, ints(*range(len(counts))), ints(*counts))


def done(number: int, elapsed_us: int = 0, epoch: int = 1) -> StepDone:
    return StepDone(number, epoch, EMPTY, EMPTY, EMPTY, elapsed_us=elapsed_us)


def granted(number: int, victims: tuple[int, ...] = ()) -> Granted:
    return Granted(number, EMPTY, EMPTY, EMPTY_BLOCKS, EMPTY_TRIPLES, victims, (), 0)


def watched(now: Callable[[], float] = lambda: 5.0) -> tuple[Traffic, dict[str, Mailbox], dict[str, Reader]]:
    boxes = {name: Mailbox(name, 2000) for name in ("scheduler", "executor")}
    readers = {name: Reader(box) for name, box in boxes.items()}
    traffic = Traffic(boxes, now)
    traffic.start()
    return traffic, boxes, readers


async def test_every_message_is_seen_once_before_its_receiver_has_it() -> None:
    seen: list[list[object]] = []
    mailbox = Mailbox("a", 9)
    mailbox.watch(lambda waiting: seen.append(list(waiting)))  # before there is a reader, too
    reader = Reader(mailbox)
    for burst in ((1, 2), (3,), (4, 5, 6)):
        for message in burst:
            mailbox.send(message)
        await turns()
    assert seen == reader.read == [[1, 2], [3], [4, 5, 6]]
    mailbox.watch(None)
    mailbox.send(7)
    await turns()
    assert (len(seen), reader.read[-1]) == (3, [7])


async def test_a_look_that_fails_keeps_no_message_from_its_receiver() -> None:
    mailbox = Mailbox("a", 9)
    reader = Reader(mailbox)
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    mailbox.watch(lambda waiting: 1 / 0)  # type: ignore[arg-type, return-value]
    mailbox.send("m")
    await turns()
    assert reader.read == [["m"]]
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_messages_are_counted_by_kind_and_the_deepest_since_the_last_look() -> None:
    traffic, boxes, _ = watched()
    for _ in range(3):
        boxes["executor"].send(Ping(1, 0))
    await turns()
    boxes["executor"].send(step(1, 1))
    await turns()
    found = traffic.take()["executor"]
    assert (found.waiting, found.deepest, found.capacity, found.messages) == (0, 3, 2000, {"Ping": 3, "Step": 1})
    boxes["executor"].send(Ping(2, 0))
    found = traffic.take()["executor"]
    assert (found.waiting, found.deepest) == (1, 1)
    await turns()
    assert traffic.take()["executor"].messages == {"Ping": 4, "Step": 1}


async def test_a_step_is_marked_when_it_is_back_with_what_it_computed_and_who_made_way() -> None:
    time = [3.0]
    traffic, boxes, _ = watched(lambda: time[0])
    boxes["scheduler"].send(granted(1, victims=(4, 5)))
    await turns()
    boxes["executor"].send(step(2, 1, 1, 30, 1))
    boxes["executor"].send(step(3, 1, 1))
    await turns()
    assert traffic.steps() == ()
    boxes["scheduler"].send(done(2, 700))
    await turns()
    time[0] = 4.0
    boxes["scheduler"].send(done(3, 80))
    await turns()
    assert traffic.steps() == (StepMark(2, 3.0, 4, 30, 3, 2, 700), StepMark(3, 4.0, 2, 0, 2, 0, 80))


async def test_a_step_that_was_lost_is_not_marked() -> None:
    traffic, boxes, _ = watched()
    boxes["executor"].send(step(1, 1))
    await turns()
    boxes["scheduler"].send(ExecutorLost(1, "killed"))
    boxes["scheduler"].send(done(1))
    await turns()
    boxes["executor"].send(step(1, 2, epoch=2))
    await turns()
    boxes["scheduler"].send(done(1, epoch=2))
    await turns()
    assert [(mark.number, mark.prefill_tokens) for mark in traffic.steps()] == [(1, 2)]


async def test_what_is_kept_is_bounded() -> None:
    traffic, boxes, _ = watched()
    for number in range(MOST_STEPS + 9):
        boxes["executor"].send(step(number, 1))
        await turns()
        boxes["scheduler"].send(done(number))
        await turns()
    numbers = [mark.number for mark in traffic.steps()]
    assert numbers == list(range(9, MOST_STEPS + 9))


async def test_a_watch_begins_with_nothing_counted_and_ends_without_a_trace() -> None:
    traffic, boxes, readers = watched()
    boxes["executor"].send(step(1, 1))
    await turns()
    traffic.stop()
    boxes["executor"].send(step(2, 1))
    await turns()
    assert traffic.take()["executor"].messages == {"Step": 1}
    traffic.start()
    assert traffic.take()["executor"].messages == {}
    assert traffic.steps() == ()
    assert len(readers["executor"].read) == 2
