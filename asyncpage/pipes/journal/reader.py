"""Reads a journal: finds the segments of one recording and gives out their records, oldest first.

The replay, the listing and the simulation's fit read with it; nobody writes through it.

INVARIANT: records come in the order in which they were appended, none twice and none left out between two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from asyncpage.errors import JournalError
from asyncpage.pipes.journal.record import STOPPED, Head, Record, unpack_head, unpack_records
from asyncpage.pipes.journal.segment import read_chunks


class JournalReader:
    """One recording.

    `head`: of its oldest segment that is there. `is_whole`: that is the first. `size`: bytes of all segments.
    `bytes_read`: how far `records` is. `stopped`: why the recording ended before its engine did, "" while unknown.
    """

    def __init__(self, path: Path) -> None:
        """Looks at the heads only. Errors: `JournalError`."""
        self.paths = [path]
        self.head = newer = _head(path)
        for older in _older_paths(path, newer):
            try:
                head = _head(older)
            except JournalError:
                break
            if head.recording != newer.recording or head.segment != newer.segment - 1:
                break
            self.paths.insert(0, older)
            self.head = newer = head
        self.is_whole = self.head.segment == 0
        self.size = sum(path.stat().st_size for path in self.paths)
        self.bytes_read = 0
        self.stopped = ""

    def records(self) -> Iterator[Record]:
        """Every record. Errors: `JournalError` where the journal is damaged."""
        before = 0
        for path in self.paths:
            chunks = read_chunks(path, is_newest=path == self.paths[-1])
            next(chunks)  # the head
            for data, end in chunks:
                self.bytes_read = before + end
                for record in unpack_records(data):
                    if record.kind == STOPPED:
                        self.stopped = record.name
                    else:
                        yield record
            before += path.stat().st_size


def _head(path: Path) -> Head:
    data, _ = next(read_chunks(path), (b"", 0))
    if not data:
        raise JournalError(f"{path} holds no head: nothing was recorded in it")
    return unpack_head(data)


def _older_paths(path: Path, head: Head) -> Iterator[Path]:
    """Where the segments before this one are, newest first: FILE.1 and FILE.2 of FILE, or FILE.3 and on of FILE.2."""
    base, first = path, 1
    numbered = re.fullmatch(r"(.+)\.(\d+)", path.name)
    if numbered and not path.with_name(f"{path.name}.1").exists():
        base, first = path.with_name(numbered[1]), int(numbered[2]) + 1
    for number in range(first, first + head.segment):
        older = base.with_name(f"{base.name}.{number}")
        if not older.exists():
            return
        yield older
