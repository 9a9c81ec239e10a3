"""Writes a journal: takes records on the engine's loop, compresses and writes them on a thread of its own.

The recorder appends; a slow or full disk never holds up a step. The thread sleeps while nothing comes; what has come
is on its way to the disk within a second, or sooner when a chunk is full.

INVARIANT: appending never raises and never waits. A journal that cannot keep up, or whose disk is full, ends there: it
says so in the log, once, and the engine goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgpack
import structlog

from asyncpage.pipes.journal.record import STOPPED
from asyncpage.pipes.journal.segment import MOST_CHUNK_BYTES, SegmentFiles

FLUSH_S = 1.0
CLOSE_S = 10.0  # what waits is at most some seconds of work; a disk that takes longer hangs, and the engine must end
MOST_WAITING_BYTES = 64 << 20  # some seconds of the fastest traffic

log = structlog.get_logger("asyncpage.journal")


class JournalWriter:
    """`append` records after `begin`; `close` when the engine stops.

    `head_of`: the head of a segment, by its number. `is_stopped`: nothing is taken any more.
    """

    def __init__(self, files: SegmentFiles, head_of: Callable[[int], bytes]) -> None:
        """Begins the first segment. Errors: `OSError`."""
        self._files = files
        self._head_of = head_of
        self._segment = 0
        self._records: deque[bytes] = deque()
        self._put = 0  # bytes, counted by the loop; those taken, by the thread
        self._taken = 0
        self.is_stopped = False
        self._is_closing = False
        self._has_some = threading.Event()
        self._is_full = threading.Event()
        files.begin(head_of(0))
        self._thread = threading.Thread(target=self._run, name="asyncpage-journal", daemon=True)
        self._thread.start()

    def append(self, record: bytes) -> None:
        """Take one record."""
        if self.is_stopped:
            return
        self._put += len(record)
        waiting = self._put - self._taken
        if waiting > MOST_WAITING_BYTES or len(record) > MOST_CHUNK_BYTES // 2:
            self.stop(f"the disk does not keep up: {waiting >> 20} MiB wait")
            return
        self._records.append(record)
        if not self._has_some.is_set():
            self._has_some.set()
        if waiting >= self._files.chunk_bytes and not self._is_full.is_set():
            self._is_full.set()

    def stop(self, reason: str) -> None:
        """The recording ends here; what was appended is still written. Says why, in the log and in the journal."""
        if not self.is_stopped:
            self.is_stopped = True
            log.error("journal.stopped", file=str(self._files.path), reason=reason)
            self._records.append(msgpack.packb((STOPPED, reason)))
            self._has_some.set()

    def close(self) -> None:
        """Write what waits and close the file, unless the disk hangs. May be called twice."""
        self._is_closing = True
        self._is_full.set()
        self._has_some.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("journal.abandoned", file=str(self._files.path), waited_s=CLOSE_S)

    def _run(self) -> None:
        """The thread. An error ends the recording; nothing is kept for a disk that may come back."""
        try:
            while not self._is_closing or self._records:
                self._has_some.wait()
                self._is_full.wait(FLUSH_S)
                self._has_some.clear()
                if not self._is_closing:
                    self._is_full.clear()
                while self._records:
                    self._write_chunk()
        except Exception as error:
            self.stop(f"it cannot be written: {type(error).__name__}: {error}")
            self._records.clear()
        finally:
            with suppress(OSError):  # what could not be written cannot be written at the end either
                self._files.close()

    def _write_chunk(self) -> None:
        records = []
        size = 0
        while self._records and size < self._files.chunk_bytes:
            records.append(self._records.popleft())
            size += len(records[-1])
        self._taken += size
        self._files.write(b"".join(records), self._next_head)

    def _next_head(self) -> bytes:
        self._segment += 1
        return self._head_of(self._segment)
