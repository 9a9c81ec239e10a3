"""Failures in the shape of the Messages API, for its routes.

The envelope answers with it below `/v1/messages`, whatever went wrong there; a stream of messages ends with it.

INVARIANT: the kinds of errors are those that this API has; the status is the failure's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.errors import Failure

_PATH = "/v1/messages"

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_message_path(path: str) -> bool:
    """Whether clients of the Messages API ask there, also where nothing is."""
    return path == _PATH or path.startswith(_PATH + "/")


def message_error(failure: Failure) -> dict[str, Any]:
    """The error object of the Messages API. It has no place for the field at fault, which the text names."""
    kind = _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": failure.message}}
