"""What a front end asks of the KV manager and what it follows: answered or refused, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from asyncpage.actors.frontend import MOST_FOLLOWERS, MOST_QUESTIONS, Frontend
from asyncpage.errors import Failure, RequestError
from asyncpage.messages import Answer, Ask, CacheEvent, CacheEvents, Follow, Question, ResetCache, Why
from asyncpage.testing.house import Inbox


def make(index: int = 0) -> tuple[Frontend, Inbox]:
    kv_manager = Inbox()
    return Frontend(index, 10, Inbox(), {"kv_manager": kv_manager}), kv_manager


def asking(frontend: Frontend, question: Question, timeout_s: float = 10) -> asyncio.Future[object]:
    return asyncio.ensure_future(frontend.ask("kv_manager", question, timeout_s))


def token(message: object) -> int:
    assert isinstance(message, Ask)
    return message.token


async def test_every_question_gets_its_own_answer_in_whatever_order_they_come() -> None:
    frontend, kv_manager = make(index=3)
    why, reset = asking(frontend, Why("a")), asking(frontend, ResetCache())
    await asyncio.sleep(0)
    first, second = kv_manager.messages
    assert (first, second) == (Ask(token(first), 3, Why("a")), Ask(token(second), 3, ResetCache()))
    frontend.receive(Answer(token(second), 7))
    frontend.receive(Answer(token(first), {"matched": 16}))
    assert (await why, await reset) == ({"matched": 16}, 7)


async def test_an_actor_that_does_not_answer_is_named_and_its_late_answer_harms_nobody() -> None:
    frontend, kv_manager = make()
    with pytest.raises(TimeoutError, match="from: kv_manager"):
        await frontend.ask("kv_manager", ResetCache(), 0.001)
    frontend.receive(Answer(token(kv_manager.messages[0]), 1))
    frontend.receive(Answer(token(kv_manager.messages[0]), 1))
    answer = asking(frontend, ResetCache())
    await asyncio.sleep(0)
    frontend.receive(Answer(token(kv_manager.messages[1]), 2))
    assert await answer == 2


async def test_questions_that_wait_are_bounded_also_when_nobody_waits_for_them_any_more() -> None:
    frontend, kv_manager = make()
    left = [asking(frontend, Why("a")) for _ in range(MOST_QUESTIONS)]
    await asyncio.sleep(0)
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    with pytest.raises(RequestError) as refused:
        await frontend.ask("kv_manager", Why("a"), 10)
    assert (refused.value.failure.status, refused.value.failure.code) == (429, "too_many_questions")
    assert len(kv_manager.messages) == MOST_QUESTIONS
    frontend.receive(Answer(token(kv_manager.messages[0]), None))
    answer = asking(frontend, Why("b"))
    await asyncio.sleep(0)
    frontend.receive(Answer(token(kv_manager.messages[-1]), None))
    assert await answer is None


async def test_when_the_house_falls_questions_fail_and_feeds_end() -> None:
    frontend, kv_manager = make()
    answer, feed = asking(frontend, ResetCache()), frontend.follow()
    await asyncio.sleep(0)
    frontend.fail_all(Failure(500, "the kv_manager died", "engine_dead"))
    with pytest.raises(RequestError, match="the kv_manager died"):
        await answer
    assert await feed.take(1) == ()
    feed.close()
    assert [type(message) for message in kv_manager.messages] == [Follow, Ask]


async def test_the_kv_manager_is_told_of_the_first_follower_and_of_the_last() -> None:
    frontend, kv_manager = make(index=2)
    feeds = [frontend.follow() for _ in range(3)]
    for feed in feeds[:2]:
        feed.close()
    assert list(kv_manager.messages) == [Follow(2, is_on=True)]
    feeds[2].close()
    feeds[2].close()
    assert list(kv_manager.messages) == [Follow(2, is_on=True), Follow(2, is_on=False)]
    frontend.follow()
    assert kv_manager.messages[-1] == Follow(2, is_on=True)


async def test_every_follower_hears_what_came_while_it_followed() -> None:
    frontend, _ = make()
    one, two, three = (CacheEvent("stored", bytes([number]) * 32) for number in range(3))
    frontend.receive(CacheEvents((one,)))
    early = frontend.follow()
    frontend.receive(CacheEvents((one, two)))
    late = frontend.follow()
    frontend.receive(CacheEvents((three,)))
    assert await early.take(9) == (one, two, three)
    assert await late.take(9) == (three,)


async def test_followers_are_bounded() -> None:
    frontend, _ = make()
    feeds = [frontend.follow() for _ in range(MOST_FOLLOWERS)]
    with pytest.raises(RequestError) as refused:
        frontend.follow()
    assert (refused.value.failure.status, refused.value.failure.code) == (429, "too_many_followers")
    feeds[0].close()
    frontend.follow()
