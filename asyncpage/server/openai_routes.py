"""The OpenAI API's routes that generate: chat completions and text completions.

The application's router calls them; each names its body reader and its shape and leaves the rest to `generate`.
"""

from __future__ import annotations

from aiohttp import web

from asyncpage.server.chat_body import read_chat
from asyncpage.server.chat_shape import ChatShape
from asyncpage.server.completion_body import read_completion
from asyncpage.server.completion_shape import CompletionShape
from asyncpage.server.generate_route import generate


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions"""
    return await generate(request, read_chat, ChatShape, "chatcmpl")


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions"""
    return await generate(request, read_completion, CompletionShape, "cmpl")
