"""The files of the page and its two rooms, read once and sent with a policy that lets them load nothing from elsewhere.

The application's router gets one handler a file.

INVARIANT: only the files named here are served; no part of a request becomes a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; font-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "woff2": "font/woff2", "txt": "text/plain"}

_ROOMS = (("/", "index.html"), ("/chart", "chart.html"))

_PARTS = (
    "theme.css",
    "chat.css",
    "chart.css",
    "api.js",
    "element.js",
    "failure_text.js",
    "key_form.js",
    "rhumb_lines.js",
    # the chat room
    "chat.js",
    "clipboard.js",
    "conversation.js",
    "markdown.js",
    "markdown_inline.js",
    "message_view.js",
    "meter.js",
    "sampling.js",
    # the chart room
    "block_card.js",
    "block_table.js",
    "chart.js",
    "chart_model.js",
    "comparison.js",
    "soundings.js",
    "timeline.js",
    "topology.js",
    # the letters, each family with its licence
    "fonts/im-fell-english.woff2",
    "fonts/IM-FELL-ENGLISH-OFL.txt",
    "fonts/eb-garamond.woff2",
    "fonts/eb-garamond-italic.woff2",
    "fonts/eb-garamond-semibold.woff2",
    "fonts/EB-GARAMOND-OFL.txt",
)

PAGE_FILES: tuple[tuple[str, str, str], ...] = tuple(
    (path, file, _TYPES[file.rpartition(".")[2]])
    for path, file in (*_ROOMS, *((f"/page/{part}", part) for part in _PARTS))
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

    charset = "utf-8" if content_type.startswith("text/") else None

    async def send(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset=charset, headers=headers)

    return send
