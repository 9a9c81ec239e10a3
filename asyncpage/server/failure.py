"""Failures as HTTP answers: the one place where a reason becomes a status, a header and an error body.

Routes and middlewares raise `RequestError`; the envelope turns what is left of it into a response here.

INVARIANT: every error that asyncpage words itself has the shape {"error": {message, type, param, code}}, but on the
routes of an API that has a shape of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from asyncpage.errors import Failure, RequestError

# What OpenAI's clients show as the kind of an error; every status that is not here is a server's fault.
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_HTTP_CODES: Mapping[int, str] = {
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    417: "expectation_failed",
}

# Why new requests are turned away in each state of the engine, and after how long asking again makes sense.
_NOT_READY: Mapping[str, tuple[str, float]] = {
    "loading": ("the model is still loading", 5.0),
    "restarting": ("the executor is being restarted", 2.0),
    "draining": ("the server is shutting down; send the request to another one", 5.0),
    "dead": ("the engine has stopped", 5.0),
}


def not_ready(state: str) -> Failure:
    """Why an engine in this state takes no requests."""
    reason, retry_after_s = _NOT_READY.get(state, (f"the engine is {state}", 5.0))
    return Failure(503, f"not ready: {reason}", code=state, retry_after_s=retry_after_s)


def internal_failure() -> Failure:
    """A fault of ours, told without its insides; the log has them."""
    return Failure(500, "the server failed to handle this request; its log says why", code="internal_error")


def http_failure(error: web.HTTPException, method: str, path: str) -> Failure:
    """aiohttp's own refusals (no such route, wrong method, body too large) in our words."""
    shown = path if len(path) <= 200 else path[:200] + "..."
    match error:
        case web.HTTPMethodNotAllowed():
            text = f"{method} is not allowed on {shown}; allowed: {', '.join(sorted(error.allowed_methods))}"
        case web.HTTPNotFound():
            text = f"there is nothing at {shown}"
        case web.HTTPExpectationFailed():
            text = "the only expectation that is met here is 100-continue; leave the Expect header out"
        case _:
            text = error.reason
    return Failure(error.status, text, code=_HTTP_CODES.get(error.status))


def error_body(failure: Failure) -> dict[str, Any]:
    """The error object of the OpenAI API."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "server_error")
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


def error_response(
    failure: Failure, headers: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
) -> web.Response:
    """The answer to a request that failed before its first byte was sent. `body`: in the shape of another API."""
    answer = web.json_response(body or error_body(failure), status=failure.status, headers=headers)
    if failure.retry_after_s is not None:
        answer.headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after_s)))
    return answer


def error_event(failure: Failure) -> bytes:
    """The failure of a stream whose headers are out: an event that clients raise as an error."""
    return b"data: " + json.dumps(error_body(failure), separators=(",", ":")).encode() + b"\n\n"


def invalid(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """A request that its client must change before asking again."""
    return RequestError(message, status=400, code=code, param=param)
