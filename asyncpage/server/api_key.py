"""API keys: who may use the guarded routes.

The gate middleware calls it for every route that is not public.

INVARIANT: the time of a check does not depend on how much of a key is right, and no key is ever logged.
"""

from __future__ import annotations

import hashlib
import hmac

from aiohttp import web

from asyncpage.errors import RequestError


class ApiKeys:
    """The keys of one server; without any, everybody may."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def check(self, request: web.Request) -> None:
        """Errors: `RequestError` 401 unless `Authorization: Bearer KEY` or `x-api-key: KEY` holds one of the keys."""
        if not self._digests:
            return
        bearers = request.headers.getall("Authorization", [])
        offered = [*request.headers.getall("X-Api-Key", [])]
        for header in bearers:
            scheme, _, key = header.strip().partition(" ")
            if scheme.lower() == "bearer" and key.strip():
                offered.append(key.strip())
        if not offered:
            raise _refusal("this server needs an API key: send it as 'Authorization: Bearer KEY'", "missing_api_key")
        # With several of a header, which one a proxy has looked at is anybody's guess.
        is_single = len(bearers) <= 1 and len(request.headers.getall("X-Api-Key", [])) <= 1
        if not (self._match(offered) and is_single):
            raise _refusal("the API key is not one of this server's", "invalid_api_key")

    def _match(self, offered: list[str]) -> bool:
        """Every offered key is compared with every key, as digests of equal length."""
        found = [hmac.compare_digest(_digest(key), digest) for key in offered for digest in self._digests]
        return any(found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _refusal(message: str, code: str) -> RequestError:
    return RequestError(message, status=401, code=code)
