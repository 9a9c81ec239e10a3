"""The OpenAI API's older routes that generate: chat completions and text completions.

The application's router calls them; each has its dialect and leaves the rest to `generate`.
"""

from __future__ import annotations

from aiohttp import web

from asyncpage.server.generate.dialect import ChunkDialect
from asyncpage.server.generate.route import generate
from asyncpage.server.openai.chat_body import read_chat
from asyncpage.server.openai.chat_shape import ChatShape
from asyncpage.server.openai.completion_body import read_completion
from asyncpage.server.openai.completion_shape import CompletionShape

_CHAT = ChunkDialect("chatcmpl", read_chat, ChatShape)
_COMPLETION = ChunkDialect("cmpl", read_completion, CompletionShape)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions"""
    return await generate(request, _CHAT)


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions"""
    return await generate(request, _COMPLETION)
