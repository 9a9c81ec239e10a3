"""A cursor over the header of a GGUF file that cannot leave it.

`gguf.py` and `gguf_metadata.py` read through it; nothing else does.

INVARIANT: `position` never passes `end`, so the work a header can cause is bounded by `MAX_HEADER_BYTES`.
"""

from __future__ import annotations

import struct

from asyncpage.errors import FormatError
from asyncpage.formats.mapped_file import MappedFile

# Twice the largest known (vocabularies of a quarter million tokens with their merges).
MAX_HEADER_BYTES = 48 * 1024 * 1024

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class HeaderReader:
    """Reads little-endian fields one after the other from the start of `file`.

    Every method names what it was reading in its `FormatError`.
    """

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0
        self.end = min(file.size, MAX_HEADER_BYTES)

    def take(self, size: int, where: str) -> bytes:
        """The next `size` bytes."""
        start = self.skip(size, where)
        return self.file.map[start : start + size]

    def skip(self, size: int, where: str) -> int:
        """Step over `size` bytes; returns where they begin."""
        start = self.position
        if size > self.end - start:
            raise self.overrun(where)
        self.position = start + size
        return start

    def u32(self, where: str) -> int:
        value: int = _U32.unpack(self.take(4, where))[0]
        return value

    def u64(self, where: str) -> int:
        value: int = _U64.unpack(self.take(8, where))[0]
        return value

    def count(self, where: str, least_bytes: int, most: int | None = None) -> int:
        """A u64 count of things that take at least `least_bytes` each, checked before anything is made for them."""
        count = self.u64(where)
        if most is not None and count > most:
            raise self.error(where, f"found {count}, at most {most} are allowed")
        if count * least_bytes > self.end - self.position:
            raise self.error(where, f"found {count}, more than the header has room for")
        return count

    def string(self, where: str, most_bytes: int) -> str:
        """A length-prefixed UTF-8 string."""
        size = self.u64(where)
        if size > most_bytes:
            raise self.error(where, f"has a string of {size} bytes, at most {most_bytes} are allowed")
        return self.text(self.take(size, where), where)

    def text(self, data: bytes, where: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error(where, f"is not valid UTF-8: {error.reason} at byte {error.start}") from None

    def overrun(self, where: str) -> FormatError:
        if self.end < self.file.size:
            return self.error(where, f"the header is longer than {MAX_HEADER_BYTES} bytes")
        return self.error(where, f"runs past the end of the file ({self.file.size} bytes); it may be cut short")

    def error(self, where: str, reason: str) -> FormatError:
        return FormatError(str(self.file.path), where, reason)
