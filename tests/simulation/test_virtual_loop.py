"""Virtual time: what passes, in which order, and that nothing waits for real."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from asyncpage.errors import Stalled
from asyncpage.simulation.virtual_loop import VirtualClock, VirtualLoop


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def clock() -> VirtualClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)


def test_years_pass_at_once_and_to_the_bit() -> None:
    async def main() -> list[float]:
        time, seen = clock(), []
        for delay_s in (0.1, 1e-9, 3e7, 0.25):
            await asyncio.sleep(delay_s)
            seen.append(time.now())
        return seen

    assert run(main()) == pytest.approx([0.1, 0.1 + 1e-9, 3e7 + 0.1 + 1e-9, 3e7 + 0.35 + 1e-9], rel=1e-12)


def test_timers_fire_in_the_order_of_their_times_each_at_its_own() -> None:
    async def main() -> list[tuple[str, float]]:
        time, fired, over = clock(), [], asyncio.Event()

        def fire(name: str) -> None:
            fired.append((name, time.now()))
            if name == "first":
                time.call_later(0.5, lambda: fire("set by the first"))
            if name == "last":
                over.set()

        time.call_later(3.0, lambda: fire("last"))
        time.call_later(1.0, lambda: fire("first"))
        time.call_later(2.0, lambda: fire("cancelled")).cancel()
        await over.wait()
        return fired

    assert run(main()) == [("first", 1.0), ("set by the first", 1.5), ("last", 3.0)]


def test_a_tiny_wait_late_in_time_still_ends() -> None:
    async def main() -> float:
        time = clock()
        await asyncio.sleep(1e9)
        await asyncio.sleep(1e-12)
        return time.now()

    assert run(main()) == pytest.approx(1e9)


def test_waiting_for_what_cannot_come_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled, match="no timer is set"):
        run(main())


def test_work_for_a_thread_is_done_in_place() -> None:
    async def main() -> tuple[str, float]:
        found = await asyncio.to_thread(str.upper, "done")
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return found, clock().now()

    assert run(main()) == ("DONE", 0.0)


def test_the_calendar_goes_with_the_clock() -> None:
    async def main() -> float:
        time = clock()
        before = time.wall()
        await asyncio.sleep(86400)
        return time.wall() - before

    assert run(main()) == 86400.0
