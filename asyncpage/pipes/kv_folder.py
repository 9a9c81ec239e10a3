"""A folder of KV block files, bounded in bytes, the longest unused removed first.

Only the archive's thread works with it (`actors/archive.py`). Files of other models that are in our format count and
are removed in their turn too, or every change of model would leave gigabytes behind; whatever else lies in the folder
is never touched. Two servers may share one: each bounds what it knows of, and a file that the other has removed is a
failed fetch.

INVARIANT: the files that it knows of take no more than `most_bytes`, except where one alone is larger.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncpage.errors import FormatError, UsageError
from asyncpage.messages import BlockLabel
from asyncpage.pipes.kv_file import (
    PART_SUFFIX,
    SUFFIX,
    file_bytes,
    file_name,
    model_id,
    read_block,
    read_header,
    write_block,
)

_ABANDONED_S = 3600.0  # an unfinished file this old belongs to a server that was killed; writing one takes milliseconds


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a folder held: blocks of this model, the longest unused first, and how many files are of no use."""

    labels: tuple[BlockLabel, ...]
    damaged: int
    foreign: int


def prepare_folder(path: Path) -> None:
    """Make the folder, mode 0700, where there is none. Whoever can write there can put words into answers.

    Errors: `UsageError` when it cannot be made or others may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UsageError(f"--kv-dir {path}: cannot be made or looked at: {error.strerror}; name another") from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"--kv-dir {path}: must be yours and writable by nobody else (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o}); run chmod 700 on it or name another"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"--kv-dir {path}: cannot be written; run chmod 700 on it or name another")


class KvFolder:
    """`fingerprint`: the executor's. `most_bytes`: of all files together."""

    def __init__(self, path: Path, fingerprint: str, most_bytes: int) -> None:
        self.path = path
        self._model = model_id(fingerprint)
        self._most_bytes = most_bytes
        # By file name, the longest unused first: bytes, and the block's key where it is this model's.
        self._files: OrderedDict[str, tuple[int, bytes | None]] = OrderedDict()
        self._bytes = 0

    def scan(self, now: float) -> Shelf:
        """Look at every file's header; `now`: seconds since the epoch. Errors: `OSError` for the folder itself."""
        found: list[tuple[float, str, int, BlockLabel | None]] = []
        damaged = foreign = 0
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            path = self.path / name
            try:
                if name.endswith(PART_SUFFIX) and now - path.lstat().st_mtime > _ABANDONED_S:
                    path.unlink()
                elif name.endswith(SUFFIX):
                    header, status = read_header(path), path.lstat()
                    is_ours = header.model == self._model and name == file_name(self._model, header.label.key)
                    foreign += not is_ours
                    found.append((status.st_mtime, name, status.st_size, header.label if is_ours else None))
            except FileNotFoundError:
                continue  # removed by another server that shares the folder
            except (FormatError, OSError):
                damaged += 1
        labels = []
        for _, name, size, label in sorted(found, key=lambda one: one[:2]):
            self._enter(name, size, None if label is None else label.key)
            if label is not None:
                labels.append(label)
        gone = set(self._make_room(0))
        return Shelf(tuple(label for label in labels if label.key not in gone), damaged, foreign)

    def make_room(self, label: BlockLabel, payload: memoryview) -> tuple[bytes, ...]:
        """Remove files until this block fits; the keys of those that were this model's."""
        return self._make_room(file_bytes(label, len(payload)))

    def store(self, label: BlockLabel, payload: memoryview) -> None:
        """Write one block; `make_room` comes before. Errors: `OSError`."""
        name = file_name(self._model, label.key)
        self._forget(name)  # it is written anew
        write_block(self.path / name, self._model, label, payload)
        self._enter(name, file_bytes(label, len(payload)), label.key)

    def fetch(self, label: BlockLabel, into: memoryview) -> None:
        """Read one block. One that is damaged is removed. Errors: `FormatError`, `OSError`."""
        name = file_name(self._model, label.key)
        try:
            read_block(self.path / name, self._model, label, into)
        except FormatError:
            self._remove(name)
            raise
        except OSError:
            self._forget(name)
            raise
        self.touch((label.key,))

    def touch(self, keys: Iterable[bytes]) -> None:
        """These blocks were of use just now, also for the next server that looks at the files' times."""
        for key in keys:
            name = file_name(self._model, key)
            if name in self._files:
                self._files.move_to_end(name)
                with suppress(OSError):
                    os.utime(self.path / name)

    def discard(self) -> None:
        """Remove every block of this model."""
        for name in [name for name, (_, key) in self._files.items() if key is not None]:
            self._remove(name)

    def _make_room(self, size: int) -> tuple[bytes, ...]:
        removed = []
        while self._files and self._bytes + size > self._most_bytes:
            name, (_, key) = next(iter(self._files.items()))
            self._remove(name)
            if key is not None:
                removed.append(key)
        return tuple(removed)

    def _remove(self, name: str) -> None:
        self._forget(name)
        with suppress(OSError):  # gone already, or nobody's to remove: either way it is not counted any more
            os.unlink(self.path / name)

    def _enter(self, name: str, size: int, key: bytes | None) -> None:
        self._files[name] = (size, key)
        self._bytes += size

    def _forget(self, name: str) -> None:
        self._bytes -= self._files.pop(name, (0, None))[0]
