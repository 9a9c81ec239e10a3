"""A read-only memory map of one regular file, whose every access is checked against its size.

The GGUF and safetensors readers read through it; nothing else maps files.

INVARIANT: no view reaches outside the file as it was when it was opened.
"""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from asyncpage.errors import FormatError, ModelError

Bytes: TypeAlias = npt.NDArray[np.uint8]


class MappedFile:
    """`size` bytes of `path`, mapped privately and read-only; pages are loaded when they are touched.

    Errors: `ModelError` when there is no such readable regular file, `FormatError` when it is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Without O_NONBLOCK a FIFO in a model folder would hang the open for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file; check the path of the model") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path}: not a regular file; give the model file itself")
            self.size = status.st_size
            if self.size == 0:
                raise FormatError(str(path), "file", "is empty")
            self.map = mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(descriptor)

    def view(self, offset: int, size: int) -> Bytes:
        """uint8 [size], read-only, not copied; it keeps the map alive. Errors: `FormatError` out of bounds."""
        self._check(offset, size)
        return np.frombuffer(self.map, np.uint8, size, offset)

    def copy(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`. Errors: `FormatError` out of bounds."""
        self._check(offset, size)
        return self.map[offset : offset + size]

    def release(self, offset: int, size: int) -> None:
        """Let the kernel drop the whole pages inside this range from our resident set; they can be read again."""
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self.map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Unmap; where views are still alive the map goes with the last of them."""
        with suppress(BufferError):
            self.map.close()

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise FormatError(str(self.path), f"bytes {offset} to {offset + size}", f"outside its {self.size} bytes")
