"""Strict, bounded JSON for the headers and small files of a model folder.

The safetensors reader and the weights' settings parse through it.

INVARIANT: text that is too long, too deep, too finely structured, not UTF-8, not an object, or names a key twice is
a `FormatError`, never a crash, and never more than a second's work.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from asyncpage.errors import FormatError, ModelError


def read_json_object(path: Path, most_bytes: int, most_containers: int) -> dict[str, Any]:
    """The JSON object in the file `path`, which has at most `most_bytes`; otherwise like `parse_json_object`.

    Errors: `ModelError` when there is no such file, `FormatError` when it is malformed.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: not a regular file")
        if status.st_size > most_bytes:
            raise FormatError(str(path), "file", f"has {status.st_size} bytes, at most {most_bytes} are allowed")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; check that the model folder is complete") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_json_object(data, str(path), "file", most_containers)


def parse_json_object(data: bytes, file: str, where: str, most_containers: int) -> dict[str, Any]:
    """The JSON object in `data`, which opens at most `most_containers` objects and lists.

    Errors: `FormatError` naming `file` and `where`.
    """
    # Millions of empty lists cost seconds and a hundred times their text in memory; a count costs neither. That it
    # also counts brackets inside of strings does no harm, the limits are far from what real files have.
    if data.count(b"{") + data.count(b"[") > most_containers:
        raise FormatError(file, where, f"has more than {most_containers} objects and lists")
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise FormatError(file, where, f"is not valid UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise FormatError(file, where, f"is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise FormatError(file, where, "is JSON nested too deeply") from None
    except ValueError as error:  # a key that is there twice, or a number of thousands of digits
        raise FormatError(file, where, f"is not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(file, where, f"is a JSON {type(value).__name__}, an object is needed")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:200]!r} is there twice")
            seen.add(key)
    return found
