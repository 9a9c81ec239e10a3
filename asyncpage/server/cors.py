"""Cross-origin requests from browsers: what a page of an allowed origin may send and read.

The gate answers preflights with it, the envelope adds the headers of every other answer.

INVARIANT: an origin that is not allowed sees no Access-Control header at all, and no answer says "*".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiohttp import web

from asyncpage.errors import RequestError
from asyncpage.server.site_check import SiteCheck

MAX_AGE_S = 600

_HEADER_NAMES = re.compile(r"[A-Za-z0-9_,\- ]{1,2000}")


def is_preflight(request: web.Request) -> bool:
    """A browser asks whether a page may send what it wants to send."""
    return (
        request.method == "OPTIONS"
        and "Origin" in request.headers
        and "Access-Control-Request-Method" in request.headers
    )


def answer_preflight(request: web.Request, sites: SiteCheck) -> web.Response:
    """Errors: `RequestError` 403 for an origin that is not allowed."""
    if not sites.is_allowed(request.headers["Origin"]):
        raise RequestError("this origin may not use this server", status=403, code="origin_not_allowed")
    headers = {"Access-Control-Allow-Methods": "GET, POST, OPTIONS", "Access-Control-Max-Age": str(MAX_AGE_S)}
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(wanted):
        headers["Access-Control-Allow-Headers"] = wanted  # "*" would leave out Authorization
    return web.Response(status=204, headers=headers)


def cors_headers(request: web.Request, sites: SiteCheck) -> Mapping[str, str]:
    """What lets a page of an allowed origin read this answer; empty for all others."""
    origin = request.headers.get("Origin")
    if origin is None or not sites.is_allowed(origin):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "x-request-id, retry-after",
        "Vary": "Origin",
    }
