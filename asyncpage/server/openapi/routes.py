"""The document as JSON, and as a page that needs no script and loads nothing but its own style.

The application's router gets these handlers; both are made once, when it is built.

INVARIANT: nothing of a request, a model or this machine is in either.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

from asyncpage.server.openapi.document import openapi
from asyncpage.server.openapi.page import STYLE_PATH, render

_POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

Handler = Callable[[web.Request], Awaitable[web.Response]]


def document_handler(root_path: str) -> Handler:
    """GET /openapi.json"""
    return _sender(json.dumps(openapi(root_path), separators=(",", ":")).encode(), "application/json")


def page_handlers() -> tuple[tuple[str, Handler], ...]:
    """The page and its style, each with its path."""
    style = files("asyncpage.server.openapi").joinpath("docs.css").read_bytes()
    return ("/docs", _sender(render(openapi()).encode(), "text/html")), (STYLE_PATH, _sender(style, "text/css"))


def _sender(body: bytes, content_type: str) -> Handler:
    headers = {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def send(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)

    return send
