"""The outermost middlewares: every request has an id, passes the gate, and gets an answer in the API's shape.

aiohttp runs `envelope`, then `gate`, then the route. Both also run for paths and methods that no route has.

INVARIANT: nothing leaves here but an answer, a cancellation or the news that the client has left.
"""

from __future__ import annotations

import asyncio

import structlog
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware

from asyncpage.errors import Failure, RequestError
from asyncpage.server.api_key import ApiKeys
from asyncpage.server.context import CONTEXT, REQUEST_ID
from asyncpage.server.cors import answer_preflight, cors_headers, is_preflight
from asyncpage.server.failure import error_response, http_failure, internal_failure
from asyncpage.server.identity import request_id
from asyncpage.server.message_error import is_message_path, message_error
from asyncpage.server.site_check import SiteCheck

_VERSIONS = (HttpVersion10, HttpVersion11)

log = structlog.get_logger("asyncpage.server")


@web.middleware
async def envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id and turn whatever happens into an answer."""
    request[REQUEST_ID] = request_id(request.headers.get("X-Request-Id"))
    metrics = request.app[CONTEXT].metrics
    try:
        answer = await handler(request)
    except (asyncio.CancelledError, ConnectionError):
        metrics.answered(_route(request), 499)
        raise
    except RequestError as error:
        answer = _refusal(request, error.failure)
    except web.HTTPException as error:
        answer = _refusal(request, http_failure(error, request.method, request.path))
        if isinstance(error, web.HTTPMethodNotAllowed):
            answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    except Exception:
        log.exception("request.failed", request_id=request[REQUEST_ID], path=request.path)
        answer = _refusal(request, internal_failure())
    metrics.answered(_route(request), answer.status)
    if answer.status >= 400 and _may_have_a_body_behind(request):
        answer.force_close()
    return answer


class Gate:
    """Who may pass: protocol, host, preflight, origin, key, in this order.

    `public`: resources that need no key. A path that no route has is none of them, so that a stranger learns nothing.
    """

    def __init__(self, sites: SiteCheck, keys: ApiKeys, public: frozenset[web.AbstractResource | None]) -> None:
        self._sites = sites
        self._keys = keys
        self._public = public

    def middleware(self) -> Middleware:
        @web.middleware
        async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.version not in _VERSIONS:
                spoken = f"HTTP/{request.version.major}.{request.version.minor}"
                text = f"{spoken} is not spoken here; a request line ends with the version of HTTP, 1.0 or 1.1"
                raise RequestError(text, code="bad_http")
            self._sites.check_host(request)
            if is_preflight(request):
                return answer_preflight(request, self._sites)
            self._sites.check_origin(request)
            if request.match_info.route.resource not in self._public:
                self._keys.check(request)
            return await handler(request)

        return gate

    async def add_headers(self, request: web.Request, answer: web.StreamResponse) -> None:
        """A signal handler: the headers that every answer has, streams and errors included."""
        # An unknown Expect is refused before any middleware runs, so that answer comes here without an id.
        set_headers(answer, request.get(REQUEST_ID) or request_id(request.headers.get("X-Request-Id")))
        if is_message_path(_own_path(request, request.path)):
            answer.headers["Request-Id"] = answer.headers["X-Request-Id"]  # as clients of this API know it
        answer.headers.update(cors_headers(request, self._sites))
        if "Upgrade" in request.headers:  # no other protocol is spoken here, so what follows is no request
            answer.force_close()
            answer.headers["Connection"] = "close"


def set_headers(answer: web.StreamResponse, id: str) -> None:
    """The headers of every answer, whoever reads it and however it came about."""
    answer.headers["X-Request-Id"] = id
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Server"] = "asyncpage"


def _refusal(request: web.Request, failure: Failure) -> web.Response:
    """The error in the shape of the API that is asked, also where it has no such route."""
    if not is_message_path(_own_path(request, request.path)):
        return error_response(failure)
    return error_response(failure, body={**message_error(failure), "request_id": request[REQUEST_ID]})


def _may_have_a_body_behind(request: web.Request) -> bool:
    """A refused request that announced no body, of a kind that has one: what follows would be read as the next one."""
    announced = "Content-Length" in request.headers or "Transfer-Encoding" in request.headers
    return not announced and request.method not in ("GET", "HEAD", "OPTIONS")


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return _own_path(request, resource.canonical) if resource is not None else "none"


def _own_path(request: web.Request, path: str) -> str:
    """A path without what a proxy shows before it."""
    root_path = request.app[CONTEXT].config.root_path
    return path.removeprefix(root_path) if path.startswith(f"{root_path}/") else path
