"""The chart room's routes: a feed of pictures of the running engine, and one block from near.

The page at /chart asks, with the key as every route wants it; the lookout looks. A watcher is sent the picture whole,
then what has changed since the last one it was sent, so one that reads slowly is shown fewer pictures and misses
nothing.

INVARIANT: nothing of the engine is looked at for a feed that nobody reads, and no watcher holds up a step.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

import asyncpage
from asyncpage.errors import RequestError, request_error
from asyncpage.lookout import Lookout
from asyncpage.server.cache_routes import check_runs, in_time
from asyncpage.server.chart.frame import change, describe, encode, is_news, whole
from asyncpage.server.context import CONTEXT, Context
from asyncpage.server.event_stream import EventStream
from asyncpage.server.failure import error_event, not_ready
from asyncpage.server.fields import shown

FRAME_S = 0.25
"""Between two pictures while something moves."""

STILL_S = 1.0
"""Between two looks while nothing does."""

BLOCKS_A_FRAME = 50_000
"""A larger pool is drawn less often: a picture takes the engine's core 0.15 us a block, 3 % of its time at most."""


class _Watch:
    """One watcher's place in the set of open feeds, and its sleep between two pictures."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()

    async def rest(self, seconds: float) -> None:
        """Sleep, unless and until it is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass


async def chart_events(request: web.Request) -> web.StreamResponse:
    """GET /events/chart: a picture of the engine as a server-sent event, then what changes, until the server drains."""
    context = request.app[CONTEXT]
    check_runs(context)
    if context.state == "draining":
        raise request_error(not_ready("draining"))
    lookout = context.engine.lookout
    lookout.open()
    watch = _Watch()
    context.open_feeds.add(watch)
    stream = EventStream(
        request,
        max_buffered_bytes=context.config.max_buffered_bytes,
        keep_alive_s=context.config.keep_alive_s,
        now=context.engine.now,
        on_lost=lambda outcome: watch.close(),
    )
    last_words = b""
    try:
        await stream.open()
        try:
            await _show(context, lookout, stream, watch)
        except RequestError as error:
            last_words = error_event(error.failure)
    finally:
        stream.stop()
        context.open_feeds.discard(watch)
        lookout.close()
    return await stream.close(last_words)


async def _show(context: Context, lookout: Lookout, stream: EventStream, watch: _Watch) -> None:
    """Send pictures until the watch is closed. Errors: `RequestError` when the engine does not answer."""
    sight = await in_time(lookout.look())
    frame = whole(sight, context.state, _about(context))
    stream.send(encode(frame))
    while not watch.is_closed:
        await stream.drain()  # a watcher that is behind is not looked for
        pause_s = FRAME_S if "blocks" in frame or "steps" in frame else STILL_S
        await watch.rest(pause_s * max(1.0, len(sight.blocks.owners) / BLOCKS_A_FRAME))
        if watch.is_closed:
            return
        before, sight = sight, await in_time(lookout.look())
        last, frame = frame, change(before, sight, context.state)
        if is_news(frame, last):
            stream.send(encode(frame))


async def look_at_block(request: web.Request) -> web.Response:
    """GET /debug/block/{block}: what it holds and who holds it. Errors: 404 for a number that is no block's."""
    context = request.app[CONTEXT]
    check_runs(context)
    asked = request.match_info["block"]
    is_number = asked.isascii() and asked.isdigit() and len(asked) <= 10
    sight = await in_time(context.engine.lookout.look_at(int(asked))) if is_number else None
    if sight is None:
        blocks = context.engine.lookout.handshake.blocks
        raise RequestError(
            f"there is no block {shown(asked)}: they are numbered from 1 to {blocks - 1}",
            status=404,
            code="block_not_found",
        )
    return web.json_response(describe(sight, context.engine.tokens if context.config.shows_tokens else None))


def _about(context: Context) -> dict[str, Any]:
    loaded = context.engine.lookout.handshake
    return {
        "version": asyncpage.__version__,
        "model": context.engine.model_names[0],
        "device": loaded.device,
        "dtype": loaded.dtype,
        "attention_backend": loaded.attention_backend,
        "block_size": loaded.block_size,
        "max_model_len": context.engine.max_model_len,
        "groups": [{"kind": group.kind, "window": group.window, "layers": group.layers} for group in loaded.groups],
        "shows_tokens": context.config.shows_tokens,
        "comparison": context.comparison,
    }
