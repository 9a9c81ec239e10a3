"""The Responses API: one route, and its dialect.

The application's router calls it.
"""

from __future__ import annotations

from aiohttp import web

from asyncpage.server.generate.reply_writer import ReplyDialect
from asyncpage.server.generate.route import generate
from asyncpage.server.responses.body import read_response
from asyncpage.server.responses.wording import ResponseWording

_RESPONSE = ReplyDialect("resp_", read_response, ResponseWording)


async def responses(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses"""
    return await generate(request, _RESPONSE)
