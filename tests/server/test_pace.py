"""The pace: one timer for all that is held, and lag only when writes are its cause."""

import asyncio

from asyncpage.server.pace import BUSY_WRITES, LAG_S, Pace


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


class Stream:
    def __init__(self, flushed: asyncio.Queue) -> None:
        self.flushed = flushed

    def flush(self) -> None:
        self.flushed.put_nowait(self)


async def turn(pace: Pace, clock: Hand, writes: int, took_s: float, *, idle_s: float = 0.0, held: int = 0) -> None:
    """The loop idles, some streams hold a piece each, others write."""
    clock.time_s += idle_s
    for _ in range(held):
        pace.hold(Stream(asyncio.Queue()))
    for _ in range(writes):
        pace.wrote()
    clock.time_s += took_s
    await asyncio.sleep(0)


async def test_streams_gather_only_after_a_turn_that_their_writes_made_slow() -> None:
    clock = Hand()
    pace = Pace(clock.now)
    for writes, took_s, is_lagging in (
        (BUSY_WRITES, LAG_S / 2, False),
        (1, LAG_S * 50, False),
        (BUSY_WRITES, LAG_S * 2, True),
        (BUSY_WRITES - 1, LAG_S * 2, False),
        (BUSY_WRITES * 2, LAG_S * 2, True),
        (BUSY_WRITES * 2, LAG_S / 2, False),
    ):
        await turn(pace, clock, writes, took_s, idle_s=1.0)
        assert pace.is_lagging is is_lagging


async def test_streams_gather_when_writes_take_more_than_half_of_the_loops_time() -> None:
    clock = Hand()
    pace = Pace(clock.now)
    for idle_s, is_lagging in ((0.004, False), (0.0021, False), (0.0019, True)):
        await turn(pace, clock, BUSY_WRITES, 0.002, idle_s=idle_s)
        assert pace.is_lagging is is_lagging
    await turn(pace, clock, BUSY_WRITES - 1, 0.002)
    assert not pace.is_lagging


async def test_gathering_goes_on_until_writing_each_piece_would_leave_most_of_the_time() -> None:
    clock = Hand()
    pace = Pace(clock.now)
    await turn(pace, clock, BUSY_WRITES, 0.002)
    # Ten pieces in each write: one by one they would have taken ten times as long.
    for idle_s, is_lagging in ((0.018, True), (0.058, True), (0.098, False)):
        await turn(pace, clock, BUSY_WRITES, 0.002, idle_s=idle_s, held=10 * BUSY_WRITES)
        assert pace.is_lagging is is_lagging


async def test_what_is_held_is_flushed_once() -> None:
    pace = Pace(lambda: 0.0)
    flushed: asyncio.Queue = asyncio.Queue()
    one, two = Stream(flushed), Stream(flushed)
    for stream in (one, two, one):
        pace.hold(stream)
    assert [await flushed.get(), await flushed.get()] == [one, two]
    assert flushed.empty()
    pace.hold(two)
    assert await flushed.get() is two
