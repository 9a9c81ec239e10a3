"""Texts and token ids, each from the other, without running anything; and what the tokenizer is.

The application's router calls these; evaluation and benchmark programs ask them.

INVARIANT: the ids told for a prompt are those that it would run with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import structlog
from aiohttp import web

from asyncpage.errors import request_error
from asyncpage.server.context import CONTEXT, REQUEST_ID
from asyncpage.server.failure import not_ready
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.route import read_setting
from asyncpage.server.json_body import JsonBody, read_object
from asyncpage.server.json_pieces import json_pieces
from asyncpage.server.openai.tokenize_body import DetokenizeCall, TokenizeCall, read_detokenize, read_tokenize

log = structlog.get_logger("asyncpage.server")

LARGE = 10_000
"""Ids from which on an answer is written in a thread: some milliseconds of work."""

SLICE = 4096
"""Ids that are gone through at once: some milliseconds of work."""

_Ids = TypeVar("_Ids", Sequence[int], "np.ndarray[Any, Any]")
_Call = TypeVar("_Call", TokenizeCall, DetokenizeCall)


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize: the ids that a prompt or a conversation becomes."""
    engine = request.app[CONTEXT].engine
    call = await _read(request, read_tokenize)
    ids: list[int] = []
    texts: list[str] = []
    async for some in _slices(await engine.tokenize(call.prompt)):
        ids += some
        if call.with_texts:
            texts += map(engine.tokens.token_text, some)
    answer: dict[str, object] = {"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids}
    if call.with_texts:
        answer["token_strs"] = texts
    if len(ids) < LARGE:
        return web.json_response(answer)
    text = await asyncio.to_thread(lambda: "".join(json_pieces(answer)))
    return web.Response(text=text, content_type="application/json")


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize: the text of ids, that of control tokens included."""
    table = request.app[CONTEXT].engine.tokens
    call = await _read(request, read_detokenize)
    pieces: list[bytes] = []
    async for some in _slices(np.frombuffer(call.tokens, dtype="<i4")):
        pieces += map(table.token_bytes, some.tolist())
    return web.json_response({"prompt": table.whole_text(b"".join(pieces))})


async def tokenizer_info(request: web.Request) -> web.Response:
    """GET /tokenizer_info: special tokens by role, and the chat template."""
    context = request.app[CONTEXT]
    if context.state == "loading":
        raise request_error(not_ready("loading"))
    return web.json_response(dict(context.engine.tokenizer_info))


async def _slices(ids: _Ids) -> AsyncIterator[_Ids]:
    """`ids` piece by piece; others have their turn in between."""
    for at in range(0, len(ids), SLICE):
        yield ids[at : at + SLICE]
        await asyncio.sleep(0)


async def _read(request: web.Request, read: Callable[[JsonBody, Setting], _Call]) -> _Call:
    """Errors: `RequestError`, also while the engine takes no requests."""
    context = request.app[CONTEXT]
    arrived = context.engine.now()
    context.check_ready()
    body = await read_object(request, context.config.max_body_bytes)
    context.check_ready()  # the upload may have taken a while
    call = read(body, read_setting(context, arrived))
    if call.ignored:
        context.metrics.fields_ignored(len(call.ignored))
        log.debug("fields.ignored", request_id=request[REQUEST_ID], count=len(call.ignored))
    return call
