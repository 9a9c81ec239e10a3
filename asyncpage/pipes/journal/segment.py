"""A journal's files: a line that names the format, then chunks of compressed records, each with its checksum.

The newest segment is FILE, the one before it FILE.1, and so on, so that the oldest has the greatest number. The first
chunk of every segment is its head, which makes each readable alone. Nothing here knows what records mean.

Layout of a chunk: compressed length, raw length, CRC-32 of the compressed bytes, CRC-32 of these twelve bytes (all
little-endian), then the compressed bytes. With a checksum of its own, a header tells damage from a torn end.

INVARIANT: files that are not a journal are never renamed, removed or written to; a journal is readable by its owner
only.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from asyncpage.errors import JournalError, UsageError

MAGIC = b"asyncpage journal 1\n"
SEGMENTS = 8  # the oldest eighth goes when the bound is reached
CHUNK_BYTES = 256 << 10  # larger ones compress 1 % better and wait longer
MOST_CHUNK_BYTES = 64 << 20  # of records in one chunk; what claims more is damaged

_HEADER = struct.Struct("<III")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size


def segment_path(path: Path, number: int) -> Path:
    """Where the segment that was closed `number` rotations ago is; 0 is the one that is written."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


class SegmentFiles:
    """The files of one recording, for its writer. Holds a lock on the newest, so that nobody else writes the journal.

    `most_bytes`: of all segments together. `chunk_bytes`: of records that should go into one chunk.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Makes way for a new recording: an earlier one's segments move on by a number.

        Errors: `UsageError` when the path cannot be written, is another's file, or is written by another process.
        """
        self.path = path
        self._most_bytes = most_bytes // SEGMENTS
        self.chunk_bytes = min(CHUNK_BYTES, self._most_bytes // 2)
        self._file: BinaryIO | None = None
        self._written = 0
        try:
            for number in range(SEGMENTS):
                _check_is_ours(segment_path(path, number))
            self._rotate()
        except OSError as error:
            raise UsageError(f"--journal {path} cannot be written: {error.strerror}") from None

    def begin(self, head: bytes) -> None:
        """Write the first segment's head. Errors: `OSError`, as of everything below."""
        self._append(head)

    def write(self, records: bytes, next_head: Callable[[], bytes]) -> None:
        """Append one chunk, to a new segment with the next head when the newest is full."""
        chunk = _chunk(records)
        if self._written + len(chunk) > self._most_bytes:
            self._rotate()
            self._append(next_head())
        self._put(chunk)

    def close(self) -> None:
        """Let go of the file; may be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, records: bytes) -> None:
        self._put(_chunk(records))

    def _put(self, data: bytes) -> None:
        if self._file is None:
            raise ValueError("the journal is closed")
        self._file.write(data)
        self._file.flush()
        self._written += len(data)

    def _rotate(self) -> None:
        self.close()
        segment_path(self.path, SEGMENTS - 1).unlink(missing_ok=True)
        for number in range(SEGMENTS - 2, -1, -1):
            older = segment_path(self.path, number)
            if older.exists():
                older.rename(segment_path(self.path, number + 1))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self.path, flags, 0o600), "wb")
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._written = 0
        self._put(MAGIC)


def _check_is_ours(path: Path) -> None:
    """Errors: `UsageError` when there is a file that is no journal, or one that somebody writes at this moment."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; the missing file is the usual case
    except FileNotFoundError:
        return
    with file:
        if path.is_symlink() or file.read(len(MAGIC)) != MAGIC:
            raise UsageError(f"--journal {path} exists and is no journal; it is left alone: give another name")
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--journal {path} is being written by another process; give another name") from None


def _chunk(records: bytes) -> bytes:
    compressed = zlib.compress(records, 3)  # of columns level 1 leaves twice as much in that time, 6 takes twice
    header = _HEADER.pack(len(compressed), len(records), zlib.crc32(compressed))
    return header + _CHECKSUM.pack(zlib.crc32(header)) + compressed


def read_chunks(path: Path, *, is_newest: bool = True) -> Iterator[tuple[bytes, int]]:
    """The records of each chunk, and how many of the file's bytes have been read.

    A last chunk of the newest segment that was not written to its end is where the writer was killed, or is writing
    now: it is passed over. Errors: `JournalError` for what is no journal, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise JournalError(f"{path} is not a journal of this version of asyncpage")
            size = os.fstat(file.fileno()).st_size
            while (start := file.tell()) + _HEADER_BYTES <= size:
                header = file.read(_HEADER.size)
                is_good = _CHECKSUM.pack(zlib.crc32(header)) == file.read(_CHECKSUM.size)
                length, raw_length, checksum = _HEADER.unpack(header)
                end = start + _HEADER_BYTES + length
                if is_good and end > size and is_newest:
                    return
                compressed = file.read(length) if is_good else b""
                if zlib.crc32(compressed) != checksum or raw_length > MOST_CHUNK_BYTES or not is_good:
                    if is_good and end == size and is_newest:
                        return
                    raise JournalError(f"{path} is damaged: the chunk at byte {start} is not what was written")
                yield _decompressed(path, start, compressed, raw_length), end
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from None


def _decompressed(path: Path, at: int, compressed: bytes, raw_length: int) -> bytes:
    """Never more than `raw_length` bytes, whatever the compressed ones say."""
    worker = zlib.decompressobj()
    try:
        records = worker.decompress(compressed, raw_length)
        if len(records) == raw_length and not worker.decompress(worker.unconsumed_tail, 1) and worker.eof:
            return records
    except zlib.error as error:
        raise JournalError(f"{path} is damaged: the chunk at byte {at} does not unpack: {error}") from None
    raise JournalError(f"{path} is damaged: the chunk at byte {at} does not hold {raw_length} bytes")
