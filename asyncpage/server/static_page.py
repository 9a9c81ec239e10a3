"""The chat page's files, read once and sent with a policy that lets them load nothing from elsewhere.

The application's router gets one handler a file.

INVARIANT: only the files named here are served; no part of a request becomes a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE_FILES: tuple[tuple[str, str, str], ...] = (
    ("/", "index.html", "text/html"),
    ("/page/chat.js", "chat.js", "text/javascript"),
    ("/page/api.js", "api.js", "text/javascript"),
    ("/page/style.css", "style.css", "text/css"),
)
"""Path, file, content type."""


def page_handler(file: str, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler that sends one file of the page."""
    body = files("asyncpage.server").joinpath("page", file).read_bytes()
    headers = {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def send(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)

    return send
