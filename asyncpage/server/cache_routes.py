"""A window into the prefix cache: reset it, ask what a request found in it, and follow what it stores and removes.

Operators and routers outside call these by the application's router; the engine asks the KV manager.

INVARIANT: a follower sees every event once and in order, or is told how many it missed; and no follower, however slow,
holds up a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import numpy as np
import structlog
from aiohttp import web

from asyncpage.errors import RequestError, request_error
from asyncpage.messages import CacheEvent
from asyncpage.pipes.cache_feed import EventsLost
from asyncpage.server.context import CONTEXT, Context
from asyncpage.server.event_stream import EventStream
from asyncpage.server.failure import not_ready
from asyncpage.server.fields import shown

log = structlog.get_logger("asyncpage.server")

EVENTS_AT_ONCE = 64
"""Events written before others have their turn: a third of a millisecond, and about 20 KB."""

# The words of vLLM's KV events, which the routers that are out there read.
_KINDS: Mapping[str, str] = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}
_MEDIUMS: Mapping[str, str] = {"gpu": "GPU", "host": "CPU", "disk": "DISK"}

_Answer = TypeVar("_Answer")


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """POST /admin/reset_prefix_cache: nothing computed so far is found again; requests that run go on."""
    context = request.app[CONTEXT]
    check_runs(context)
    dropped = await in_time(context.engine.reset_prefix_cache())
    log.info("cache.reset", blocks=dropped)
    return web.json_response({"blocks_dropped": dropped})


async def why(request: web.Request) -> web.Response:
    """GET /debug/why/{request id}: what it found in the cache, and why no more. Errors: 404 when that is not kept."""
    context = request.app[CONTEXT]
    check_runs(context)
    label = request.match_info["id"]
    explanation = await in_time(context.engine.why(label))
    if explanation is None:
        raise RequestError(
            f"nothing is kept of the request {shown(label)}: give the 'id' of an answer; only the latest requests are "
            "remembered, and of those that did not use the prefix cache there is nothing to tell",
            status=404,
            code="request_not_found",
        )
    return web.json_response(explanation)


async def kv_events(request: web.Request) -> web.StreamResponse:
    """GET /events/kv: a server-sent event for every block stored or removed from now on, until the server drains.

    An event's `id` counts all events since the stream began, those that the follower was too slow for included.
    """
    context = request.app[CONTEXT]
    check_runs(context)
    if context.state == "draining":
        raise request_error(not_ready("draining"))
    feed = context.engine.follow_cache_events()
    context.open_feeds.add(feed)
    stream = EventStream(
        request,
        max_buffered_bytes=context.config.max_buffered_bytes,
        keep_alive_s=context.config.keep_alive_s,
        now=context.engine.now,
        on_lost=lambda outcome: feed.close(),
    )
    told = 0
    try:
        await stream.open()
        while news := await feed.take(EVENTS_AT_ONCE):
            events = []
            for event in news:
                told += event.count if isinstance(event, EventsLost) else 1
                events.append(_framed(told, event))
            stream.send(b"".join(events))
            await stream.drain()  # what a slow client does not read stays in the feed, which is bounded
            await asyncio.sleep(0)  # neither of the two waits while there are events and room
    finally:
        stream.stop()
        feed.close()
        context.open_feeds.discard(feed)
    return await stream.close(b"")


def _framed(number: int, event: CacheEvent | EventsLost) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (number, json.dumps(_body(event), separators=(",", ":")).encode())


def _body(event: CacheEvent | EventsLost) -> dict[str, object]:
    """An event as its JSON object. Hashes are hexadecimal; a prompt's first block has no parent."""
    if isinstance(event, EventsLost):
        return {"type": "EventsLost", "count": event.count}
    body: dict[str, object] = {"type": _KINDS[event.kind]}
    if event.kind != "cleared":
        body["block_hashes"] = [event.name.hex()]
    if event.kind == "stored":
        body["parent_block_hash"] = event.parent.hex() or None
        body["token_ids"] = np.frombuffer(event.tokens, dtype="<i4").tolist()
        body["block_size"] = event.block_size
        body["lora_id"] = None
    body["medium"] = _MEDIUMS[event.medium]
    return body


def check_runs(context: Context) -> None:
    """Errors: `RequestError` 503 when there is no cache yet, or none any more."""
    if context.state in ("loading", "dead"):
        raise request_error(not_ready(context.state))


async def in_time(asked: Awaitable[_Answer]) -> _Answer:
    """Errors: `RequestError` 503 when the actor does not answer."""
    try:
        return await asked
    except TimeoutError as error:
        raise RequestError(str(error), status=503, code="not_answering", retry_after_s=5.0) from None
