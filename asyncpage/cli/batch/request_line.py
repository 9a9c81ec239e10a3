"""The input of a batch: one request a line, each under a name of its own.

`asyncpage run-batch` reads the file twice: once to see that every line can be answered under its name, once to run.

INVARIANT: what leaves `read_requests` has a name that no other line of the file has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncpage.errors import RequestError, UsageError
from asyncpage.server.json_body import kind_of, parse_object

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_TOLD = 5
"""Faulty lines that are told of at once: the others are most likely of the same kind."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line. `fault`: why it cannot be sent; None when it can."""

    custom_id: str
    url: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None


def check_requests(path: Path) -> list[str]:
    """The name of every request, in order.

    Errors: `UsageError` when the file cannot be read, holds no request, or has lines without a name of their own.
    """
    names: dict[str, int] = {}
    faults: list[str] = []
    for number, line in _lines(path):
        name = _name(line)
        if name is None:
            faults.append(f"line {number} {_why_nameless(line)}")
        elif name in names:
            faults.append(f"line {number} has the custom_id {name[:40]!a} of line {names[name]}")
        else:
            names[name] = number
        if len(faults) >= MOST_TOLD:
            break
    if faults:
        raise UsageError(f"{path}: {'; '.join(faults)}; nothing was run: every answer is found by its custom_id")
    if not names:
        example = f'{{"custom_id": "a", "method": "POST", "url": "{URLS[0]}", "body": {{...}}}}'
        raise UsageError(f"{path} holds no request; write one a line, such as {example}")
    return list(names)


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """Every request of a file that was checked, one at a time."""
    for _, line in _lines(path):
        name = _name(line)
        if name is not None:  # else the file has changed since
            yield _request(name, parse_object(line).fields)


def _request(name: str, fields: dict[str, Any]) -> BatchRequest:
    method, url, body = fields.get("method", "POST"), fields.get("url"), fields.get("body")
    fault = None
    if method != "POST":
        fault = "method must be POST"
    elif url not in URLS:
        fault = f"url must be one of {', '.join(URLS)}"
    elif not isinstance(body, dict):
        fault = f"body must be an object, got {kind_of(body)}"
    elif body.get("stream"):
        fault = "body.stream: the answers of a batch are not streamed; leave it out"
    if fault is not None:
        return BatchRequest(name, fault=fault)
    return BatchRequest(name, str(url), dict(body or {}))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank. Errors: `UsageError`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _name(line: bytes) -> str | None:
    try:
        name = parse_object(line).fields.get("custom_id")
    except RequestError:
        return None
    return name if isinstance(name, str) and name else None


def _why_nameless(line: bytes) -> str:
    try:
        parse_object(line)
    except RequestError as error:
        return str(error).replace("the request body", "", 1).strip()
    return "has no custom_id, which is a text of at least one character"
