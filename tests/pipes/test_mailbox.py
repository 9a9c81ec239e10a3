"""Mailboxes and thread addresses on the standard loop and on uvloop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from asyncpage.errors import MailboxFull
from asyncpage.pipes.mailbox import Mailbox, ThreadAddress

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def go(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return go


class Reader:
    """Takes everything in each wake-up and notes the batches."""

    def __init__(self, mailbox: Mailbox, until: int = 0) -> None:
        self.mailbox = mailbox
        self.batches: list[list[object]] = []
        self.overflows: list[Exception] = []
        self.until = until
        self.all_read = asyncio.Event()
        self.queue: deque[object] = mailbox.bind(asyncio.get_running_loop(), self.turn, self.overflows.append)

    def turn(self) -> None:
        self.batches.append(list(self.queue))
        self.queue.clear()
        if sum(map(len, self.batches)) >= self.until:
            self.all_read.set()
        self.mailbox.rest()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_that_is_sent_in_one_turn_is_read_in_one_wake_up_in_order(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 100)
        reader = Reader(mailbox)
        for number in range(50):
            mailbox.send(number)
        await turns()
        mailbox.send("later")
        await turns()
        assert reader.batches == [list(range(50)), ["later"]]

    run(main())


def test_an_empty_mailbox_wakes_nobody(run: Run) -> None:
    async def main() -> None:
        reader = Reader(Mailbox("reader", 100))
        await turns(10)
        assert reader.batches == []

    run(main())


def test_messages_sent_before_the_reader_came_wait_for_it(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 100)
        mailbox.send("early")
        reader = Reader(mailbox)
        await turns()
        assert reader.batches == [["early"]]

    run(main())


def test_a_full_mailbox_refuses_and_names_itself_and_the_message(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("kv manager", 2)
        mailbox.send(1)
        mailbox.send(2)
        with pytest.raises(MailboxFull, match="kv manager is full: 2 messages wait and str"):
            mailbox.send("third")
        reader = Reader(mailbox)
        await turns()
        assert reader.batches == [[1, 2]]
        mailbox.send(3)

    run(main())


def test_a_mailbox_without_room_is_refused_at_birth() -> None:
    with pytest.raises(ValueError, match="capacity of at least 1"):
        Mailbox("reader", 0)


def test_a_mailbox_has_one_reader_at_a_time_and_keeps_its_messages_between_two(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 10)
        first = Reader(mailbox)
        with pytest.raises(RuntimeError, match="already has a reader"):
            Reader(mailbox)
        mailbox.unbind()
        mailbox.send("between")
        await turns()
        second = Reader(mailbox)
        await turns()
        assert (first.batches, second.batches) == ([], [["between"]])

    run(main())


def test_a_closed_mailbox_takes_any_number_of_messages_and_keeps_none(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 2)
        reader = Reader(mailbox)
        mailbox.close()
        for number in range(100):
            mailbox.send(number)
        await turns()
        assert (len(mailbox), reader.batches) == (0, [])

    run(main())


def test_messages_from_many_threads_all_arrive_in_each_threads_order(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 100_000)
        reader = Reader(mailbox, until=4 * 2000)
        address = ThreadAddress(mailbox, asyncio.get_running_loop())

        def send(sender: int) -> None:
            for number in range(2000):
                address.send((sender, number))

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        await reader.all_read.wait()
        for thread in threads:
            thread.join()
        got: list[Any] = [message for batch in reader.batches for message in batch]
        for sender in range(4):
            assert [number for source, number in got if source == sender] == list(range(2000))

    run(main())


def test_a_burst_from_another_thread_crosses_in_one_wake_up(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 100)
        reader = Reader(mailbox, until=50)
        address = ThreadAddress(mailbox, asyncio.get_running_loop())

        def send() -> None:
            for number in range(50):
                address.send(number)

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()  # the loop stands still meanwhile, so the whole burst waits to cross
        await reader.all_read.wait()
        assert reader.batches == [list(range(50))]

    run(main())


def test_a_thread_address_refuses_when_as_much_waits_to_cross_as_the_mailbox_holds(run: Run) -> None:
    async def main() -> None:
        address = ThreadAddress(Mailbox("reader", 3), asyncio.get_running_loop())
        for number in range(3):
            address.send(number)
        with pytest.raises(MailboxFull):
            address.send("fourth")

    run(main())


def test_a_message_that_crossed_into_a_full_mailbox_is_reported_to_its_reader(run: Run) -> None:
    async def main() -> None:
        mailbox = Mailbox("reader", 1)
        reader = Reader(mailbox, until=1)
        address = ThreadAddress(mailbox, asyncio.get_running_loop())
        address.send("crossing")
        mailbox.send("inside")
        mailbox.unbind()  # so that nothing is taken out before the other one arrives
        mailbox.bind(asyncio.get_running_loop(), lambda: None, reader.overflows.append)
        await turns()
        assert [type(error) for error in reader.overflows] == [MailboxFull]

    run(main())


def test_what_is_sent_to_a_loop_that_has_closed_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    address = ThreadAddress(Mailbox("reader", 2), loop)
    loop.close()
    for number in range(10):
        address.send(number)
