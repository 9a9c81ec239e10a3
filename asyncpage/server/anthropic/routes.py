"""The Messages API: its routes, and the dialect of the one that generates.

The application's router calls them.
"""

from __future__ import annotations

from aiohttp import web

from asyncpage.server.anthropic.body import read_counted, read_message
from asyncpage.server.anthropic.wording import PING, MessageWording
from asyncpage.server.context import CONTEXT
from asyncpage.server.generate.reply_writer import ReplyDialect
from asyncpage.server.generate.route import generate, read_setting
from asyncpage.server.json_body import read_object

_MESSAGE = ReplyDialect("msg_", read_message, MessageWording, PING)


async def messages(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages"""
    return await generate(request, _MESSAGE)


async def count_tokens(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: the tokens of the prompt that these messages would run with."""
    context = request.app[CONTEXT]
    context.check_ready()
    body = await read_object(request, context.config.max_body_bytes)
    prompt = read_counted(body, read_setting(context, context.engine.now()))
    tokens = await context.engine.tokenize(prompt)
    return web.json_response({"input_tokens": len(tokens)})
