"""A follower's events: in order, bounded, and whatever is lost is counted where it is missing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.messages import CacheEvent
from asyncpage.pipes.cache_feed import CacheFeed, EventsLost


def event(number: int) -> CacheEvent:
    return CacheEvent("stored", number.to_bytes(32, "big"))


def numbers(news: tuple[CacheEvent | EventsLost, ...]) -> list[int | str]:
    return [f"{n.count} lost" if isinstance(n, EventsLost) else int.from_bytes(n.name, "big") for n in news]


def make(most: int = 4) -> tuple[CacheFeed, list[CacheFeed]]:
    closed: list[CacheFeed] = []
    return CacheFeed(closed.append, most), closed


async def test_events_come_in_order_and_at_most_as_many_as_are_taken() -> None:
    feed, _ = make()
    feed.put([event(1), event(2)])
    feed.put([event(3)])
    assert numbers(await feed.take(2)) == [1, 2]
    assert numbers(await feed.take(2)) == [3]


async def test_a_reader_is_woken_by_what_arrives() -> None:
    feed, _ = make()
    taking = asyncio.ensure_future(feed.take(9))
    await asyncio.sleep(0)
    assert not taking.done()
    feed.put([event(7)])
    assert numbers(await taking) == [7]


async def test_a_slow_follower_is_told_how_much_it_lost_where_it_lost_it() -> None:
    feed, _ = make(most=2)
    feed.put([event(1), event(2), event(3)])
    feed.put([event(4)])
    assert numbers(await feed.take(1)) == [1]
    feed.put([event(5)])  # the word of the loss takes the room of an event
    assert numbers(await feed.take(9)) == [2, "3 lost"]
    feed.put([event(6)])
    assert numbers(await feed.take(9)) == [6]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60), st.integers(1, 5))
def test_with_losses_counted_every_event_is_accounted_for(acts: list[tuple[bool, int]], most: int) -> None:
    async def run() -> None:
        feed, _ = make(most)
        put, got = 0, []
        for is_put, count in acts:
            if is_put:
                feed.put([event(number) for number in range(put, put + count)])
                put += count
            elif len(feed):
                got += await feed.take(count)
            assert len(feed) <= most + 1
        feed.close()
        while news := await feed.take(3):
            got += news
        at = 0
        for item in got:
            if isinstance(item, EventsLost):
                at += item.count
            else:
                assert item == event(at)
                at += 1
        assert at == put

    asyncio.run(run())


async def test_a_closed_feed_gives_what_waits_and_then_ends() -> None:
    feed, closed = make()
    feed.put([event(1), event(2)])
    feed.close()
    feed.close()
    feed.put([event(3)])
    assert numbers(await feed.take(1)) == [1]
    assert numbers(await feed.take(9)) == [2]
    assert await feed.take(9) == ()
    assert closed == [feed]


async def test_closing_wakes_the_reader() -> None:
    feed, _ = make()
    taking = asyncio.ensure_future(feed.take(1))
    await asyncio.sleep(0)
    feed.close()
    assert await taking == ()


async def test_leaving_the_loop_closes_the_feed() -> None:
    feed, closed = make()
    feed.put([event(1), event(2)])
    news: Any = aiter(feed)
    assert numbers((await anext(news),)) == [1]
    await news.aclose()
    assert closed == [feed]
