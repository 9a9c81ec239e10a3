"""Traces from files: a JSON object a line, read as far as the simulation has come.

`asyncpage simulate FILE` asks for one. Two kinds of lines are known, by their fields:

    {"arrival_s": 1.5, "prompt_tokens": 300, "output_tokens": 64, "prefix_group": "a", "prefix_tokens": 200}
    {"timestamp": 1500, "input_length": 1300, "output_length": 64, "hash_ids": [7, 12, 15]}

In the first, `prompt_tokens` may be a list of token ids. A prompt of a `prefix_group` begins with `prefix_tokens` of
the group's own tokens (all of it when absent), so that prompts of a group share their beginning. `priority` may be
there. The second is the form in which traces of large services were published: milliseconds, and an id for every 512
tokens of the prompt, equal where the tokens are.

INVARIANT: a line that cannot be understood is refused by its number; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from asyncpage.errors import UsageError
from asyncpage.messages import Int32
from asyncpage.simulation.trace import Arrival, Session, Trace, Turn
from asyncpage.text.artificial_vocabulary import WORDS_FROM

HASHED_TOKENS = 512
"""Tokens behind one of the `hash_ids`, in the published traces."""

_MOST_TOKENS = 1 << 24  # of one prompt; a number beyond it is a mistake
_KEYS = {
    "arrival_s": {"arrival_s", "prompt_tokens", "output_tokens", "prefix_group", "prefix_tokens", "priority"},
    "timestamp": {"timestamp", "input_length", "output_length", "hash_ids"},
}


def file_trace(path: Path, *, end_id: int) -> Trace:
    """The trace in a file. Lengths become tokens from the ids from `WORDS_FROM` up to before `end_id`.

    Errors: `UsageError` when the file cannot be read; while it is read, for a line that is no request.
    """
    try:
        with path.open("rb") as lines:
            requests = sum(1 for line in lines if line.strip())
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}") from None
    if not requests:
        raise UsageError(f"the trace {path} is empty; it holds a JSON object a line")
    return Trace(path.name, _Lines(path, end_id), requests, True)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Can be read again, from the beginning."""

    path: Path
    end_id: int

    def __iter__(self) -> Iterator[Arrival]:
        latest_s = 0.0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    at_s, turn = self._read(number, json.loads(line))
                    if at_s < latest_s:
                        raise ValueError(f"it comes at {at_s:g} s, after one at {latest_s:g} s; sort the file by time")
                except ValueError as error:
                    raise UsageError(f"{self.path}, line {number}: {error}") from None
                latest_s = at_s
                yield Arrival(at_s, _alone(turn))

    def _read(self, number: int, found: Any) -> tuple[float, Turn]:
        """Errors: `ValueError` with what is wrong."""
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        kind = next((key for key in _KEYS if key in found), None)
        if kind is None:
            raise ValueError("it has neither arrival_s nor timestamp, the time at which the request comes")
        if strange := found.keys() - _KEYS[kind]:
            raise ValueError(f"{', '.join(sorted(strange))} is none of {', '.join(sorted(_KEYS[kind]))}")
        if kind == "timestamp":
            at_s = _number(found, "timestamp", 0.0) / 1e3
            prompt = self._hashed(number, found)
            return at_s, Turn(prompt, max(1, _count(found, "output_length")))
        at_s = _number(found, "arrival_s", 0.0)
        priority = _count(found, "priority", default=0, least=-(2**31))
        return at_s, Turn(self._prompt(number, found), _count(found, "output_tokens", least=1), priority=priority)

    def _prompt(self, number: int, found: Mapping[str, Any]) -> Int32:
        given = found.get("prompt_tokens")
        if isinstance(given, list):
            if not given or not all(type(token) is int and 0 <= token < 2**31 for token in given):
                raise ValueError("prompt_tokens must be a length or a list of token ids, with at least one")
            return np.array(given, dtype=np.int32)
        length = _count(found, "prompt_tokens", least=1)
        if "prefix_group" not in found:
            return self._tokens(f"line {number}", 0, length)
        shared = min(length, _count(found, "prefix_tokens", default=length))
        own = self._tokens(f"line {number}", shared, length - shared)
        return np.concatenate((self._tokens(f"group {found['prefix_group']!r}", 0, shared), own))

    def _hashed(self, number: int, found: Mapping[str, Any]) -> Int32:
        length = _count(found, "input_length", least=1)
        ids = found.get("hash_ids", [])
        if not isinstance(ids, list) or len(ids) > -(-length // HASHED_TOKENS):
            raise ValueError(f"hash_ids must be a list with at most one id for each {HASHED_TOKENS} tokens")
        parts = [self._tokens(f"hash {id}", 0, HASHED_TOKENS) for id in ids]
        known = min(length, HASHED_TOKENS * len(ids))
        return np.concatenate((*parts, self._tokens(f"line {number}", 0, length - known)))[:length]

    def _tokens(self, stream: str, first: int, count: int) -> Int32:
        """Tokens `first` .. `first + count` of an endless stream, the same for equal names."""
        places = np.arange(first, first + count, dtype=np.uint64) + np.uint64(crc32(stream.encode()) << 31)
        mixed = places * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        mixed >>= np.uint64(33)
        return (WORDS_FROM + mixed % np.uint64(self.end_id - WORDS_FROM)).astype(np.int32)


def _alone(turn: Turn) -> Session:
    yield turn


def _number(found: Mapping[str, Any], key: str, least: float) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
        raise ValueError(f"{key} must be a number of at least {least:g}, found {value!r}")
    return float(value)


def _count(found: Mapping[str, Any], key: str, *, default: int | None = None, least: int = 0) -> int:
    value = found.get(key, default)
    if type(value) is not int or not least <= value <= _MOST_TOKENS:
        raise ValueError(f"{key} must be a whole number from {least} to {_MOST_TOKENS}, found {value!r}")
    return value
