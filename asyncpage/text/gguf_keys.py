"""The `tokenizer.ggml` keys of a GGUF file, each checked for its type.

`gguf_vocabulary` reads through it.

INVARIANT: a value of another type than was asked for is refused by the key's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from asyncpage.errors import FormatError, ModelError

PREFIX = "tokenizer.ggml."


class TokenizerKeys:
    """Keys are named without their common beginning."""

    def __init__(self, source: str, metadata: Mapping[str, Any]) -> None:
        self._source = source
        self._metadata = metadata

    def text(self, key: str) -> str:
        value = self._metadata.get(PREFIX + key)
        if value is None:
            raise ModelError(f"{self._source}: has no {PREFIX}{key}, so its tokenizer is of an unknown kind")
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._metadata.get(PREFIX + key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def token_id(self, key: str, size: int, default: int | None = None) -> int | None:
        value = self._metadata.get(PREFIX + key, default)
        if value is not None and (not isinstance(value, int) or not 0 <= value < size):
            raise self._wrong(key, value, f"a token id below {size}")
        return value

    def token_types(self, size: int) -> list[int]:
        value = self._metadata.get(PREFIX + "token_type")
        if not isinstance(value, list) or len(value) != size or not all(isinstance(item, int) for item in value):
            raise self._wrong("token_type", value, f"a list of {size} integers, one a token")
        return value

    def scores(self, size: int) -> list[float]:
        value = self._metadata.get(PREFIX + "scores")
        is_list = isinstance(value, list) and len(value) == size
        if not is_list or not all(isinstance(item, int | float) and math.isfinite(item) for item in value or ()):
            raise self._wrong("scores", value, f"a list of {size} finite numbers, one a token")
        return list(value or ())

    def _wrong(self, key: str, value: object, needed: str) -> FormatError:
        found = repr(value) if not isinstance(value, list) else f"a list of {len(value)}"
        return FormatError(self._source, PREFIX + key, f"found {found}, {needed} is needed")
