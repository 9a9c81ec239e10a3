"""Request bodies: bytes to one JSON object, bounded in size, time and depth before anything else looks at them.

Routes call `read_object`; what it lets through has no duplicate keys, no lone surrogates, no endless nesting and no
more values than can be read in a fraction of a second.
Numbers that are not finite are left for the field readers, which can name them; `check_values` finds the literals
(NaN, Infinity) that no reader asked for.

INVARIANT: no body, however made, raises anything but `RequestError`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from aiohttp import web

from asyncpage.errors import RequestError
from asyncpage.server.failure import invalid

MAX_DEPTH = 200
"""Levels of nesting in a body; a JSON Schema that people write has a dozen, and one made by machine a hundred."""

# Reading a value takes up to a few microseconds, in which nothing else runs, whatever it is for. Strings are dearest,
# then lists and objects; numbers are cheap, and prompts are made of them.
MAX_STRINGS = 200_000
MAX_CONTAINERS = 300_000
MAX_VALUES = 2_000_000

MAX_DIGITS = 1000
"""Digits in a row that a number may have in a body of more than `FEW_BYTES`: reading them takes time that grows with
their square, seconds for a body of nothing but numbers of 4,000 digits."""

FEW_BYTES = 1 << 20
"""Bodies up to this size are read in some hundredths of a second, however long their numbers are."""

UPLOAD_TIMEOUT_S = 120.0
"""Time for a whole body to arrive: a client that trickles bytes may not hold its place for ever."""

# A string; also one that never ends, so that a scan is linear whatever the input.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHANGE = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# Escapes that may decode to a lone surrogate; a body without them and without the two words needs no search.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NO_NUMBERS = (b"NaN", b"Infinity")
# Every digit as "0", every other byte as a blank: what is too long is then one fixed string, which is found in linear
# time. A pattern of as many digits took 44 s for a body of shorter runs: it starts again at each of their digits.
_DIGITS_ALIKE = bytes(48 if 48 <= byte < 58 else 32 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A parsed body. `is_suspect`: it holds text that can decode to what JSON should not carry."""

    fields: dict[str, Any]
    is_suspect: bool


async def read_object(request: web.Request, max_bytes: int) -> JsonBody:
    """The request's body, whatever its content type says.

    Errors: `RequestError` 413 above `max_bytes`, 415 when compressed, 408 when it does not arrive in time, 400 for
    anything that is not one JSON object.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        text = "compressed request bodies are not taken; send the JSON as it is"
        raise RequestError(text, status=415, code="unsupported_encoding")
    if request.content_length is not None and request.content_length > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(max_bytes) from None
    except TimeoutError:
        raise RequestError("the request body did not arrive in time", status=408, code="timeout") from None
    except web.RequestPayloadError as error:
        raise invalid(f"the request body could not be read: {error}") from None
    return parse_object(raw)


def parse_object(raw: bytes, what: str = "the request body") -> JsonBody:
    """`what` it is, for errors: `RequestError` 400 naming what is wrong with it."""
    if not raw.strip():
        raise invalid(f"{what} is empty; a JSON object is needed")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    check_structure(raw, what)
    if len(raw) > FEW_BYTES and _has_long_digits(raw) and _has_long_digits(_STRING.sub(b"", raw)):
        raise invalid(f"{what} holds a number of more than {MAX_DIGITS} digits")
    try:
        body = json.loads(text, object_pairs_hook=partial(_unique, what))
    except json.JSONDecodeError as error:
        raise invalid(f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:  # Python refuses to read integers of more than 4,300 digits
        raise invalid(f"{what} holds a number with too many digits") from None
    if not isinstance(body, dict):
        raise invalid(f"{what} must be a JSON object, got {kind_of(body)}")
    is_suspect = any(word in raw for word in _NO_NUMBERS) or _SURROGATE.search(raw) is not None
    return JsonBody(body, is_suspect)


def check_values(body: JsonBody) -> None:
    """Refuse lone surrogates and NaN or Infinity, wherever they are, by dotted path. For after the fields were read.

    A literal too large for a float (1e400) is refused by whoever reads its field, and harmless where nobody does.
    """
    if not body.is_suspect:
        return
    for path, value in _walk(body.fields):
        if isinstance(value, float):
            if not math.isfinite(value):
                raise invalid(f"{path} must be a finite number", param=path)
        elif not _is_encodable(value):
            path = _safe(path)
            raise invalid(f"{path} holds half of a surrogate pair, which is not text", param=path)


def kind_of(value: object) -> str:
    """The JSON name of a parsed value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _too_large(max_bytes: int) -> RequestError:
    text = f"the request body is larger than this server takes ({max_bytes} bytes; --max-body-bytes)"
    return RequestError(text, status=413, code="request_too_large")


def check_structure(raw: bytes, what: str) -> None:
    """Refuse what is too deep or of too many parts, before any of it is built. Errors: `RequestError` 400."""
    containers = raw.count(b"[") + raw.count(b"{")
    if containers <= MAX_DEPTH and raw.count(b'"') <= 2 * MAX_STRINGS and raw.count(b",") < MAX_VALUES:
        return
    bare, strings = _STRING.subn(b"", raw, MAX_STRINGS + 1)
    brackets = bare.translate(None, _NO_BRACKETS)
    depths = accumulate(map(_DEPTH_CHANGE.__getitem__, brackets[: 2 * MAX_CONTAINERS]))
    if max(depths, default=0) > MAX_DEPTH:
        raise invalid(f"{what} is nested more than {MAX_DEPTH} levels deep")
    if strings > MAX_STRINGS:
        raise invalid(f"{what} holds more than {MAX_STRINGS} strings")
    if brackets.count(b"[") + brackets.count(b"{") > MAX_CONTAINERS:
        raise invalid(f"{what} holds more than {MAX_CONTAINERS} lists and objects")
    if bare.count(b",") >= MAX_VALUES:
        raise invalid(f"{what} holds more than {MAX_VALUES} values")


def _has_long_digits(raw: bytes) -> bool:
    return _TOO_MANY_DIGITS in raw.translate(_DIGITS_ALIKE)


def _unique(what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise invalid(f"{what} has the key {name[:100]!a} twice in one object", param=_safe(name[:100]))
    return found


def _walk(fields: dict[str, Any]) -> Iterator[tuple[str, float | str]]:
    """Every string, key and float with its dotted path; iterative, because depth is the client's choice."""
    waiting: list[tuple[str, Any]] = [("", fields)]
    while waiting:
        path, value = waiting.pop()
        dot = "." if path else ""
        match value:
            case dict():
                for name, item in value.items():
                    yield path + dot + name, name
                    waiting.append((path + dot + name, item))
            case list():
                waiting.extend(
                    (f"{path}{dot}{index}", item) for index, item in enumerate(value) if type(item) is not int
                )
            case float() | str():
                yield path, value


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _safe(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
