"""The window into the prefix cache, over an engine whose cache is a set of chained digests of four-byte blocks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from asyncpage.errors import RequestError
from asyncpage.messages import CacheEvent, TextPrompt
from asyncpage.pipes.cache_feed import CacheFeed

BLOCK = 4
ROUTES = [("POST", "/admin/reset_prefix_cache"), ("GET", "/debug/why/x"), ("GET", "/events/kv")]


def tokens_of(text: bytes) -> bytes:
    return b"".join(byte.to_bytes(4, "little") for byte in text)


def chain(text: bytes) -> list[bytes]:
    names = [b""]
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        names.append(hashlib.sha256(names[-1] + text[start : start + BLOCK]).digest())
    return names


@pytest.fixture
async def engine(make_engine: Any) -> Any:
    class CachingEngine(make_engine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held: set[bytes] = set()
            self.explanations: dict[str, Mapping[str, object]] = {}
            self.feeds: set[CacheFeed] = set()
            self.most_waiting = 1000
            self.most_feeds = 2

        def submit(self, prompt: Any, sampling: Any, options: Any, sink: Any) -> Any:
            if isinstance(prompt, TextPrompt):
                self._hold(prompt.text.encode(), options.label)
            return super().submit(prompt, sampling, options, sink)

        def _hold(self, text: bytes, label: str) -> None:
            names = chain(text)
            matched = sum(name in self.held for name in names[1:]) * BLOCK
            self.explanations[label] = {"matched_tokens": matched, "missed": len(text) // BLOCK - matched // BLOCK}
            for at, (parent, name) in enumerate(pairwise(names)):
                if name not in self.held:
                    self.held.add(name)
                    tokens = tokens_of(text[at * BLOCK :][:BLOCK])
                    self.tell(CacheEvent("stored", name, parent, tokens, block_size=BLOCK))

        async def reset_prefix_cache(self) -> int:
            await self.ping(1.0)
            dropped = len(self.held)
            self.held.clear()
            self.tell(CacheEvent("cleared"))
            return dropped

        async def why(self, label: str) -> Mapping[str, object] | None:
            await self.ping(1.0)
            return self.explanations.get(label)

        def follow_cache_events(self) -> CacheFeed:
            if len(self.feeds) == self.most_feeds:
                raise RequestError("too many follow", status=429, code="too_many_followers", retry_after_s=5.0)
            feed = CacheFeed(self._left, self.most_waiting)
            self.feeds.add(feed)
            return feed

        def _left(self, feed: CacheFeed) -> None:
            self.feeds.discard(feed)
            self._changed.set()

        def tell(self, *events: CacheEvent) -> None:
            for feed in self.feeds:
                feed.put(events)

    return CachingEngine()


def events_of(body: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Number and JSON of every event; comments are left out."""
    found = []
    for block in body.decode().split("\n\n"):
        if block and not block.startswith(":"):
            number, data = block.split("\n")
            assert number.startswith("id: ")
            assert data.startswith("data: ")
            found.append((int(number[4:]), json.loads(data[6:])))
    return found


async def test_a_reset_tells_how_many_blocks_were_dropped(site) -> None:
    await site.complete(prompt="abcdefgh")
    await site.complete(prompt="abcdzzzz1")
    assert await site.post("/admin/reset_prefix_cache", b"") == (200, {"blocks_dropped": 3})
    assert await site.post("/admin/reset_prefix_cache", b"") == (200, {"blocks_dropped": 0})


async def test_why_is_asked_by_the_id_of_an_answer(site) -> None:
    await site.complete(prompt="abcdefgh")
    body = await site.complete(prompt="abcdXfgh")
    answer = await site.get(f"/debug/why/{body['id']}")
    assert answer.status == 200
    assert answer.json == {"matched_tokens": 4, "missed": 1}


@pytest.mark.parametrize("label", ["absent", "a%2Fb", "%0d%0aSet-Cookie:x", "%ff", "x" * 500])
async def test_a_request_that_is_not_remembered_is_404_and_told(site, label: str) -> None:
    answer = await site.get(f"/debug/why/{label}")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "request_not_found"
    assert "nothing is kept of the request" in answer.json["error"]["message"]


async def test_a_stored_block_is_told_in_the_words_that_routers_read(site) -> None:
    async with site.session.get(site.url + "/events/kv") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        await site.complete(prompt="abcdefghi")
        await site.post("/admin/reset_prefix_cache", b"")
        site.engine.tell(CacheEvent("removed", b"\x01" * 32, medium="host", block_size=BLOCK))
        site.engine.tell(CacheEvent("cleared", medium="disk"))
        got = b"".join([await answer.content.readuntil(b"\n\n") for _ in range(5)])
    _, first, second = chain(b"abcdefgh")
    stored = {"type": "BlockStored", "block_size": 4, "lora_id": None, "medium": "GPU"}
    assert events_of(got) == [
        (1, {**stored, "block_hashes": [first.hex()], "parent_block_hash": None, "token_ids": [97, 98, 99, 100]}),
        (
            2,
            {
                **stored,
                "block_hashes": [second.hex()],
                "parent_block_hash": first.hex(),
                "token_ids": [101, 102, 103, 104],
            },
        ),
        (3, {"type": "AllBlocksCleared", "medium": "GPU"}),
        (4, {"type": "BlockRemoved", "block_hashes": ["01" * 32], "medium": "CPU"}),
        (5, {"type": "AllBlocksCleared", "medium": "DISK"}),
    ]


async def test_every_follower_is_told_and_one_that_leaves_is_followed_no_more(site) -> None:
    async with site.session.get(site.url + "/events/kv") as stays:
        async with site.session.get(site.url + "/events/kv") as leaves:
            assert (await site.get("/events/kv")).json["error"]["code"] == "too_many_followers"
            site.engine.tell(CacheEvent("cleared"))
            for answer in (stays, leaves):
                assert events_of(await answer.content.readuntil(b"\n\n"))[0][0] == 1
            leaves.close()
        await site.engine.until(lambda: len(site.engine.feeds) == 1)
        site.engine.tell(CacheEvent("cleared"))
        assert events_of(await stays.content.readuntil(b"\n\n"))[0][0] == 2


async def test_a_quiet_feed_is_kept_alive_by_comments(serve) -> None:
    site = await serve(keep_alive_s=0.01)
    async with site.session.get(site.url + "/events/kv") as answer:
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"


async def test_a_follower_that_lags_is_told_how_many_events_it_lost(site) -> None:
    engine, told = site.engine, 0
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        writer.write(b"GET /events/kv HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        (feed,) = engine.feeds
        lost = CacheEvent("stored", b"\x02" * 32, b"\x03" * 32, tokens_of(bytes(range(200))), block_size=200)
        while len(feed) <= engine.most_waiting:  # the one above the bound says what is lost
            engine.tell(*[lost] * 100)
            told += 100
            await asyncio.sleep(0)
        engine.tell(*[lost] * 50)
        told += 50
        assert len(feed) == engine.most_waiting + 1
        writer.transport.resume_reading()
        await asyncio.gather(site.server.drain(), reading := asyncio.ensure_future(reader.read(-1)))
        writer.close()
    events = events_of(reading.result())
    numbers = [number for number, _ in events]
    gaps = [event["count"] for _, event in events if event["type"] == "EventsLost"]
    assert gaps
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == told == len(events) - len(gaps) + sum(gaps)


async def test_a_follower_that_lags_holds_up_nobody(site) -> None:
    async with site.session.get(site.url + "/events/kv"):
        event = CacheEvent("stored", b"\x02" * 32, b"", tokens_of(bytes(200)), block_size=200)
        for _ in range(100):
            site.engine.tell(*[event] * 100)
        assert (await site.complete(prompt="still here"))["choices"][0]["text"] == "still here"


@pytest.mark.parametrize("end", ["drain", "stop"])
async def test_the_feed_ends_cleanly_when_the_server_does(site, end: str) -> None:
    async with site.session.get(site.url + "/events/kv") as answer:
        site.engine.tell(CacheEvent("cleared"))
        await getattr(site.server, end)()
        assert [number for number, _ in events_of(await answer.read())] == [1]
    assert not site.engine.feeds


async def test_a_draining_server_takes_no_new_follower_and_still_answers_questions(site) -> None:
    await site.complete(prompt="abcd")
    await site.server.drain()
    answer = await site.get("/events/kv")
    assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
    assert await site.post("/admin/reset_prefix_cache", b"") == (200, {"blocks_dropped": 1})


@pytest.mark.parametrize("state", ["loading", "dead"])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_cache_there_is_nothing_to_ask(site, state: str, method: str, path: str) -> None:
    site.engine.state = state
    answer = await site.get(path, method)
    assert (answer.status, answer.json["error"]["code"]) == (503, state)
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(("method", "path"), ROUTES[:2])
async def test_an_actor_that_does_not_answer_is_a_503(site, method: str, path: str) -> None:
    site.engine.is_hung = True
    answer = await site.get(path, method)
    assert (answer.status, answer.json["error"]["code"]) == (503, "not_answering")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_window_is_guarded_like_every_route(serve, method: str, path: str) -> None:
    site = await serve(api_key=("secret",))
    assert (await site.get(path, method)).status == 401
    assert (await site.get(path, method, Authorization="Bearer secret", Host="evil.example")).status == 403
    if method == "POST":
        origin = {"Authorization": "Bearer secret", "Origin": "http://evil.example"}
        assert (await site.get(path, method, **origin)).status == 403
    async with site.session.request(method, site.url + path, headers={"Authorization": "Bearer secret"}) as answer:
        assert answer.status in (200, 404)


async def test_a_feed_has_no_head(site) -> None:
    assert (await site.get("/events/kv", "HEAD")).status == 405
