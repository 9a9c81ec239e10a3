"""The first signal asks, the second insists."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from asyncpage.cli.interrupts import Interrupts

# A signal behind the block, one when the loop is gone, and one while the interpreter ends.
LATE = """
import asyncio, atexit, os, signal, sys
from asyncpage.cli.interrupts import Interrupts
from asyncpage.cli.loop import new_runner

number = int(sys.argv[1])

async def serve():
    with Interrupts().listening(lambda: None):
        pass
    os.kill(os.getpid(), number)

atexit.register(os.kill, os.getpid(), number)
with new_runner() as runner:
    runner.run(serve())
os.kill(os.getpid(), number)
"""


async def never() -> None:
    await asyncio.Event().wait()


async def answer() -> int:
    return 42


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_for_an_end_and_the_second_insists(number: signal.Signals) -> None:
    interrupts = Interrupts()
    told: list[bool] = []
    with interrupts.listening(lambda: told.append(interrupts.abort.is_set())):
        os.kill(os.getpid(), number)
        await interrupts.shutdown.wait()
        assert not interrupts.abort.is_set()
        os.kill(os.getpid(), number)
        await interrupts.abort.wait()
    assert told == [False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_command_that_is_over_does_not_change_its_exit_code(number: signal.Signals) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LATE, str(int(number))], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_work_that_nobody_interrupts_gives_its_result() -> None:
    assert await Interrupts().unless_shutdown(answer()) == 42


async def test_a_signal_interrupts_work_which_cleans_up_first() -> None:
    interrupts = Interrupts()
    steps: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await never()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned")

    with interrupts.listening(lambda: steps.append("told")):
        assert await interrupts.unless_shutdown(work()) is None
    assert steps == ["told", "cleaned"]


async def test_a_wish_from_before_interrupts_work_at_once() -> None:
    interrupts = Interrupts()
    interrupts.shutdown.set()
    assert await interrupts.unless_shutdown(never()) is None


async def test_an_error_of_the_work_is_not_swallowed() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await Interrupts().unless_shutdown(work())


async def test_cancelling_the_waiter_cancels_the_work() -> None:
    cleaned: list[bool] = []
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await never()
        finally:
            cleaned.append(True)

    waiter = asyncio.ensure_future(Interrupts().unless_shutdown(work()))
    await started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert cleaned == [True]
