"""Links to a second process, to a thread, and to an event loop, over every transport."""

from __future__ import annotations

import asyncio
import json
import os
import random
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from asyncpage.errors import LinkClosed, MailboxFull, ProtocolError
from asyncpage.messages import LoadFailed, Shutdown, Step, StepDone, StepFailed
from asyncpage.pipes import link as link_module
from asyncpage.pipes.descriptors import LinkDescriptors
from asyncpage.pipes.link import Link, attach_link, create_link, create_socket_link

FAR = Path(__file__).with_name("far_process.py")
SHARED = runpy.run_path(str(FAR))
KILLED = Path(__file__).with_name("killed_writer.py")
PATIENCE_S = 60.0  # how long a test waits before it fails; none is expected to wait

Create = Callable[..., tuple[Link, LinkDescriptors]]

KINDS: dict[str, Create] = {
    "ring": create_link,
    "small ring": lambda **settings: create_link(4096, **settings),
    "unordered ring": lambda **settings: create_link(4096, ordered=False, **settings),
    "socket": create_socket_link,
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def create(request: pytest.FixtureRequest) -> Create:
    made: Create = request.param
    return made


class Far:
    """A near end, and the far end in a process that does one act of `far_process.py`."""

    def __init__(self, create: Create, *act: str) -> None:
        self.near, descriptors = create()
        self.process = subprocess.Popen(
            [sys.executable, str(FAR), descriptors.to_argument(), *act], pass_fds=descriptors.fds
        )
        descriptors.close()

    def hear(self) -> Any:
        message = self.near.wait(PATIENCE_S)
        assert message is not None
        return message

    def __enter__(self) -> Far:
        return self

    def __exit__(self, *_: object) -> None:
        self.near.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def ends(create: Create) -> Iterator[tuple[Link, Link]]:
    """Both ends in this process."""
    near, descriptors = create()
    far = attach_link(descriptors)
    yield near, far
    near.close()
    far.close()


# --- a second process --------------------------------------------------------------------------------------------


def test_a_second_process_receives_what_is_sent(create: Create) -> None:
    sent = SHARED["steps"](4, 150)
    with Far(create, "answer_digests") as far:
        for message in sent:
            far.near.send(message)
        assert [far.hear().reason for _ in sent] == [SHARED["digest"](message) for message in sent]
        far.near.send(Shutdown())
        assert far.process.wait(PATIENCE_S) == 0


def test_what_a_second_process_sends_is_received(create: Create) -> None:
    sent = SHARED["answers"](5, 150)
    with Far(create, "send_answers", "5", "150") as far:
        for message in sent:
            assert SHARED["canonical"](far.hear()) == SHARED["canonical"](message)


def test_a_killed_process_is_noticed_after_what_it_sent(create: Create) -> None:
    with Far(create, "die_after_one") as far:
        assert far.hear() == StepFailed(1, 0, "whole")
        with pytest.raises(LinkClosed, match="is gone"):
            far.near.wait(PATIENCE_S)
        assert far.process.wait() == -signal.SIGKILL
        assert select.select([far.near.lifeline_fd], [], [], 0)[0]


def test_a_process_killed_in_its_wait_is_noticed(create: Create) -> None:
    with Far(create, "answer_digests") as far:
        far.near.send(Step(0, 0, np.zeros(1, np.int32), np.zeros(1, np.int32)))
        far.hear()
        far.process.kill()
        with pytest.raises(LinkClosed):
            far.near.wait(PATIENCE_S)
        far.near.send(Shutdown())  # lost, and no error: the lifeline has told


def test_a_near_end_that_goes_ends_the_far_ends_wait(create: Create) -> None:
    with Far(create, "until_closed") as far:
        far.near.close()
        assert far.process.wait(PATIENCE_S) == 7


def test_a_near_end_that_goes_ends_the_far_ends_wait_for_room(create: Create) -> None:
    with Far(create, "flood") as far:
        far.hear()
        far.near.close()
        assert far.process.wait(PATIENCE_S) == 7


def test_the_far_end_waits_for_room_and_loses_nothing(create: Create) -> None:
    with Far(create, "flood") as far:
        for _ in range(5_000):
            done = far.hear()
        assert np.array_equal(done.tokens, np.arange(100))


def test_both_ends_cost_nothing_while_idle(create: Create) -> None:
    row = np.zeros(1, np.int32)
    with Far(create, "report_idleness") as far:
        for number in range(2):  # the first wait includes the start
            far.near.send(Step(number, 0, row, row))
            far.hear()
        before = time.process_time()
        assert far.near.wait(0.5) is None
        assert time.process_time() - before < 0.1
        far.near.send(Step(2, 0, row, row))
        done = far.hear()
        assert done.elapsed_us < 100_000
        assert done.tokens[0] <= 5  # times it went to sleep: nothing ticks


# --- killed anywhere ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scenarios"),
    [
        ("ordered", ["first_record", "later_record", "record_after_padding", "several_records"]),
        ("unordered", ["record_after_padding", "several_records"]),
        ("socket", ["later_record", "several_records"]),
    ],
)
def test_a_writer_killed_at_any_line_leaves_a_whole_message_or_none(kind: str, scenarios: list[str]) -> None:
    ran = subprocess.run([sys.executable, str(KILLED), kind, *scenarios], capture_output=True, text=True, check=True)
    by_scenario = json.loads(ran.stdout)
    assert list(by_scenario) == scenarios
    for outcomes in by_scenario.values():
        published = outcomes.index("whole")
        assert published > 20
        assert outcomes == ["none"] * published + ["whole"] * (len(outcomes) - published)


# --- a thread of this process --------------------------------------------------------------------------------------


def test_a_thread_serves_a_far_end_over_duplicated_descriptors(create: Create) -> None:
    near, descriptors = create()
    far = attach_link(descriptors.duplicate())
    descriptors.close()
    row = np.arange(300, dtype=np.int32)
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            while True:
                step = far.wait()
                assert isinstance(step, Step)
                far.send(StepDone(step.number, 0, step.rows, step.counts, step.rows))
        except BaseException as error:
            errors.append(error)
        finally:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    for number in range(500):
        near.send(Step(number, 0, row, row))
        done = near.wait(PATIENCE_S)
        assert isinstance(done, StepDone)
        assert done.number == number
        assert np.array_equal(done.tokens, row)
    near.close()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [LinkClosed]


# --- an event loop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_loop_is_woken_for_every_message(create: Create, factory: Any) -> None:
    row = np.arange(200, dtype=np.int32)

    async def converse() -> list[int]:
        loop = asyncio.get_running_loop()
        with Far(create, "answer_digests") as far:
            got: list[int] = []
            done = asyncio.Event()

            def wake() -> None:
                far.near.acknowledge()
                while far.near.receive() is not None:
                    got.append(len(got))
                    if len(got) < 300:
                        far.near.send(Step(len(got), 0, row, row))
                    else:
                        done.set()

            loop.add_reader(far.near.wake_fd, wake)
            far.near.send(Step(0, 0, row, row))
            await asyncio.wait_for(done.wait(), PATIENCE_S)
            loop.remove_reader(far.near.wake_fd)
        return got

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(converse()) == list(range(300))


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_loop_sends_more_than_there_is_room_for_without_waiting(create: Create, factory: Any) -> None:
    pairs = np.zeros((100_000, 2), np.int32)
    row = np.zeros(1, np.int32)

    async def flood() -> int:
        loop = asyncio.get_running_loop()
        near, descriptors = create()
        far = attach_link(descriptors)
        for number in range(4):
            near.send(Step(number, 0, row, row, saves=pairs))  # 800 kB each; nobody reads yet

        def read() -> int:
            count = 0
            while count < 4:
                step = far.wait(PATIENCE_S)
                assert isinstance(step, Step)
                assert step.number == count
                assert len(step.saves) == 100_000
                count += 1
            return count

        def wake() -> None:
            near.acknowledge()
            near.receive()

        loop.add_reader(near.wake_fd, wake)
        got = await asyncio.wait_for(loop.run_in_executor(None, read), PATIENCE_S)
        loop.remove_reader(near.wake_fd)
        near.close()
        far.close()
        return got

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(flood()) == 4


def test_an_idle_link_does_not_wake_its_loop(ends: tuple[Link, Link]) -> None:
    near, far = ends
    row = np.zeros(1, np.int32)
    near.send(Step(0, 0, row, row))
    assert far.wait(PATIENCE_S) is not None
    far.send(StepDone(0, 0, row, row, row))
    assert select.select([near.wake_fd], [], [], PATIENCE_S)[0]
    near.acknowledge()
    assert near.receive() is not None
    assert near.receive() is None
    assert not select.select([near.wake_fd, near.lifeline_fd], [], [], 0)[0]


# --- bounds, errors, ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["small ring", "unordered ring", "socket"])
def test_a_queue_past_its_bound_refuses_the_message_and_keeps_the_link(kind: str) -> None:
    near, descriptors = KINDS[kind](queue_bytes=3_000_000)
    far = attach_link(descriptors)
    rows = [np.full(1, number, np.int32) for number in range(10)]
    sent = 0

    def overfill() -> None:
        nonlocal sent
        for row in rows:
            near.send(Step(sent, 0, row, row, saves=np.zeros((100_000, 2), np.int32)))
            sent += 1

    with pytest.raises(MailboxFull, match="does not read"):
        overfill()
    assert 1 <= sent < 10

    def pump() -> None:
        while len(received) < sent:
            select.select([near.wake_fd], [], [], PATIENCE_S)
            near.acknowledge()

    received: list[int] = []
    thread = threading.Thread(target=pump)
    thread.start()
    while len(received) < sent:
        step = far.wait(PATIENCE_S)
        assert isinstance(step, Step)
        received.append(step.number)
    far.send(StepFailed(0, 0, "wake the pump"))
    thread.join(PATIENCE_S)
    assert received == list(range(sent))
    near.send(Step(99, 0, rows[sent], rows[sent]))  # the same rows as the step that was refused
    step = far.wait(PATIENCE_S)
    assert isinstance(step, Step)
    assert np.array_equal(step.rows, rows[sent])
    near.close()
    far.close()


def test_a_malformed_message_is_refused_and_keeps_the_link(ends: tuple[Link, Link]) -> None:
    near, far = ends
    row = np.zeros(2, np.int32)
    with pytest.raises(ProtocolError, match="2 rows with 1 counts"):
        near.send(Step(0, 0, row, row[:1]))
    near.send(Step(1, 0, row, row))
    step = far.wait(PATIENCE_S)
    assert isinstance(step, Step)
    assert step.number == 1


def test_a_message_of_the_wrong_direction_breaks_the_link_for_good(ends: tuple[Link, Link]) -> None:
    near, far = ends
    near.send(LoadFailed("ModelError", "?"))
    near.send(Shutdown())
    for _ in range(2):
        with pytest.raises(ProtocolError, match="does not come this way"):
            far.wait(PATIENCE_S)


def test_a_closed_link_refuses_everything_and_can_be_closed_again(ends: tuple[Link, Link]) -> None:
    near, far = ends
    near.close()
    near.close()
    for call in (near.receive, near.wait, near.acknowledge, lambda: near.send(Shutdown())):
        with pytest.raises(LinkClosed, match="this end"):
            call()
    with pytest.raises(LinkClosed, match="other end"):
        far.wait(PATIENCE_S)


def test_silence_ends_a_wait_with_a_limit(ends: tuple[Link, Link]) -> None:
    for end in ends:
        assert end.wait(0) is None
        assert end.receive() is None


def test_a_link_leaves_no_descriptor_behind(create: Create) -> None:
    before = os.listdir("/proc/self/fd")
    near, descriptors = create()
    far = attach_link(descriptors.duplicate())
    descriptors.close()
    near.close()
    far.close()
    assert os.listdir("/proc/self/fd") == before


def test_no_descriptor_is_inherited_unless_passed(create: Create) -> None:
    near, descriptors = create()
    fds = [*descriptors.fds, near.wake_fd, near.lifeline_fd]
    assert not any(os.get_inheritable(fd) for fd in fds)
    near.close()
    descriptors.close()


def test_a_far_end_attaches_only_to_the_link_it_was_told() -> None:
    near, descriptors = create_link(epoch=4)
    wrong = LinkDescriptors("ring", descriptors.fds, descriptors.owner_pid, 5)
    with pytest.raises(ProtocolError, match="epoch is 4, expected 5"):
        attach_link(wrong)
    attach_link(descriptors).close()
    with pytest.raises(ProtocolError, match="attached once"):
        attach_link(descriptors)
    near.close()


@pytest.mark.parametrize("kind", ["ring", "socket"])
def test_descriptors_that_are_no_link_are_refused(kind: Any) -> None:
    fds = [fd for _ in range(3) for fd in os.pipe()]
    count = {"ring": 5, "socket": 2}[kind]
    with pytest.raises(ProtocolError, match=f"descriptor {fds[0]} is not"):
        attach_link(LinkDescriptors(kind, tuple(fds[:count]), os.getpid(), 0))
    for fd in fds:
        os.close(fd)


def test_a_socket_carries_links_where_memory_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "CAN_SHARE_MEMORY", False)
    near, descriptors = create_link()
    assert descriptors.kind == "socket"
    far = attach_link(descriptors)
    near.send(Shutdown())
    assert far.wait(PATIENCE_S) == Shutdown()
    near.close()
    far.close()


def test_messages_of_every_size_pass_both_ways(ends: tuple[Link, Link]) -> None:
    near, far = ends
    chance = random.Random(9)
    row = np.zeros(1, np.int32)

    def answer() -> None:
        for _ in range(60):
            step = far.wait(PATIENCE_S)
            assert isinstance(step, Step)
            tokens = step.saves.reshape(-1)
            far.send(StepDone(step.number, 0, row, row, tokens))

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(60):
        pairs = np.frombuffer(chance.randbytes(8 * int(200_000 * chance.random() ** 6)), np.int32).reshape(-1, 2)
        near.send(Step(number, 0, row, row, saves=pairs))
        done = near.wait(PATIENCE_S)
        assert isinstance(done, StepDone)
        assert np.array_equal(done.tokens, pairs.reshape(-1))
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("make", [create_link, create_socket_link])
def test_what_has_crossed_is_counted_at_both_ends(make: Callable[[], tuple[Link, LinkDescriptors]]) -> None:
    near, descriptors = make()
    far = attach_link(descriptors.duplicate())
    assert near.crossed == (0, 0)
    for _ in range(3):
        near.send(Shutdown())
    assert [far.receive() for _ in range(3)] == [Shutdown()] * 3
    sent, received = near.crossed
    assert far.crossed == (received, sent) == (0, sent)
    assert sent > 0
    assert sent % 3 == 0, "equal messages are equally long"
    for end in (near, far, descriptors):
        end.close()
