"""The output of a batch: one answer a line, in the order in which they came; what is there already is kept.

`asyncpage run-batch` opens it before anything is loaded, and writes each answer as it comes.

INVARIANT: no byte of an answer that is whole is ever changed, and after any interruption all but the last line are
whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from asyncpage.errors import AsyncpageError, UsageError

_BEGINNING = b'{"id": "batch_req_'


class ResultFile:
    """`answered`: names of the requests that have their answer. `repaired`: a line that was cut off was taken away."""

    def __init__(self, path: Path, names: Collection[str]) -> None:
        """Open or make the file for a batch of requests with these names.

        Errors: `UsageError` when it cannot be written, is being written by another, or holds anything else than
        answers to these requests.
        """
        self.path = path
        self.answered: set[str] = set()
        self.repaired = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; choose another -o") from None
        try:
            self._lock()
            self._take_over(names)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, result: dict[str, Any]) -> None:
        """Add one answer. Errors: `AsyncpageError` when there is no room for it."""
        try:
            left = json.dumps(result, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:  # half a surrogate pair, in a name or in what a model said
            left = json.dumps(result).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise AsyncpageError(
                f"{self.path} cannot be written: {error.strerror}; the same command goes on when it can"
            ) from None
        self.answered.add(result["custom_id"])

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{self.path} is being written by another run; wait for it or choose another -o") from None

    def _take_over(self, names: Collection[str]) -> None:
        with open(self._file, "rb", closefd=False) as file:
            whole = 0
            for number, line in enumerate(file, 1):
                name, is_ended = _answered(line), line.endswith(b"\n")
                if name in names and name is not None:
                    self.answered.add(name)
                    if not is_ended:
                        os.write(self._file, b"\n")
                elif not is_ended and (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                    self.repaired = True  # it was being written when the run ended
                    os.ftruncate(self._file, whole)
                elif line.strip():
                    raise UsageError(
                        f"{self.path} exists, and its line {number} is no answer to a request of this batch; nothing "
                        "was changed: choose another -o"
                    )
                whole += len(line)


def _answered(line: bytes) -> str | None:
    """The name of the request that a line answers; None when it is no answer."""
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not {"custom_id", "response", "error"} <= result.keys():
        return None
    name = result["custom_id"]
    return name if isinstance(name, str) else None
