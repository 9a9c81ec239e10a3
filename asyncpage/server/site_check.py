"""Who is asking: the Host that a request names and the web origin it comes from, against what the operator allows.

The gate middleware calls it for every route. A web page that a victim has open can make its browser send requests
here, but it can neither choose the Host header nor leave out the Origin.

INVARIANT: a request that some web page caused passes only if it comes from this server's own page or an allowed
origin (non-GET), and only under a name that this server goes by (any method).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from asyncpage.errors import RequestError
from asyncpage.server.config import ServerConfig

_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


class SiteCheck:
    """The allow-lists of one server. "*" in a list stands for every host or origin."""

    def __init__(self, config: ServerConfig) -> None:
        listening = f"[{config.host}]" if ":" in config.host else config.host
        self._hosts = _LOCAL | {listening.lower()} | {host.lower() for host in config.allowed_hosts}
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)

    def check_host(self, request: web.Request) -> None:
        """Errors: `RequestError` 400 without exactly one Host, 403 for a host that is not ours."""
        named = request.headers.getall("Host", [])
        if len(named) != 1:
            raise RequestError("a request needs exactly one Host header", status=400, code="bad_host")
        host = named[0].strip().lower()
        name = _without_port(host)
        if name in self._hosts or host in self._hosts or "*" in self._hosts or name == _own_address(request):
            return
        raise RequestError(
            f"the host {host[:100]!r} is not served here; start with --allowed-hosts to add it",
            status=403,
            code="host_not_allowed",
        )

    def check_origin(self, request: web.Request) -> None:
        """Errors: `RequestError` 403 when another site's page sends anything but GET or HEAD."""
        if request.method in ("GET", "HEAD"):
            return
        origins = request.headers.getall("Origin", [])
        if all(self.is_allowed(origin) or _is_same_site(origin, request) for origin in origins):
            return
        raise RequestError(
            f"web pages of {origins[0][:100]!r} may not use this server; start with --allowed-origins to let them",
            status=403,
            code="origin_not_allowed",
        )

    def is_allowed(self, origin: str) -> bool:
        """Whether the operator lets pages of this origin call and read. "null" is nobody, so it never is."""
        origin = origin.lower()
        return origin != "null" and (origin in self._origins or "*" in self._origins)


def _is_same_site(origin: str, request: web.Request) -> bool:
    """The origin is the page that this server itself sent; the scheme may differ behind a proxy that ends TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    host = request.headers.get("Host", "")
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.strip().lower()


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else host


def _own_address(request: web.Request) -> str | None:
    """The address that the connection came in on: a server on a wildcard address goes by each of its numbers.

    Safe, because a name that an attacker makes point here still is a name in the Host header.
    """
    address = request.transport.get_extra_info("sockname") if request.transport is not None else None
    if not isinstance(address, tuple):
        return None
    number = str(address[0])
    return f"[{number}]" if ":" in number else number
