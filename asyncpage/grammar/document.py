"""Reads the JSON that a grammar comes as: bounded in size and depth before it is parsed, numbers exact.

The compilers of choices, structures and schemas call it.

INVARIANT: whatever the text, it ends in a value or a 400; a value nests at most `MAX_DEPTH` deep, its numbers are
`int` or `Decimal` of at most `MAX_DIGITS` digits, and its strings can be written as UTF-8.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import numpy as np

from asyncpage.grammar.refusal import invalid, too_large

MAX_TEXT = 1 << 20  # characters; the largest schemas that people send have some ten thousand
MAX_DEPTH = 256  # deeper than any schema that people write, and parsed well within the interpreter's stack
MAX_DIGITS = 400  # a double's largest value has 309
_MAX_EXPONENT = 308  # what a double holds

# A string; also one that never ends, so that a scan is linear whatever the text.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS = str.maketrans({char: None for char in map(chr, range(128)) if char not in "[]{}"})


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text; `what` it is, for errors. Errors: 400."""
    if len(text) > MAX_TEXT:
        raise too_large(f"{what} may have at most {MAX_TEXT} characters, got {len(text)}")
    depth = _depth(text)
    if depth > MAX_DEPTH:
        raise too_large(f"{what} may nest at most {MAX_DEPTH} deep, got {depth}")
    try:
        value = json.loads(text, parse_float=_decimal, parse_int=_integer, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise invalid(f"{what} must be JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise invalid(f"{what} must be JSON: {error}") from None
    try:
        text.encode("utf-8")
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(f"{what} must be text: a lone surrogate was found") from None
    return value


def _depth(text: str) -> int:
    brackets = _STRING.sub("", text).translate(_BRACKETS).encode("ascii", "ignore")
    steps = np.frombuffer(brackets, dtype=np.uint8)
    is_opening = (steps == ord("[")) | (steps == ord("{"))
    return int(np.cumsum(np.where(is_opening, 1, -1)).max(initial=0))


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    return int(text)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    exponent = int(value.as_tuple().exponent)
    if len(text) > MAX_DIGITS or abs(exponent) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits")
    if value and abs(value.adjusted()) >= _MAX_EXPONENT:
        raise ValueError("a number beyond what a double holds")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
