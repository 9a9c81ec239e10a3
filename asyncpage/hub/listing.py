"""What the hub says of a repository at one commit: its files, each with the size and the hash to hold it to.

The connection makes it; the fetch decides with it.

INVARIANT: a digest is hexadecimal, so it can be the name of a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """`digest`: of a large file its SHA-256, of a small one the SHA-1 that git names it by.

    Errors: `ValueError` for what is no size or no digest.
    """

    name: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 0:
            raise ValueError(f"{self.size!r} is no size")
        if type(self.digest) is not str or not _DIGEST.fullmatch(self.digest):
            raise ValueError(f"{self.digest!r} is no digest")

    def found(self, path: Path) -> str:
        """The digest of what lies at `path`, by this file's kind of hash. Errors: `OSError`."""
        if len(self.digest) == 64:
            hash = hashlib.sha256()
        else:
            # Git hashes a file behind a header of its own.
            hash = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                hash.update(chunk)
        return hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Listing:
    """`files` by name, of the repository at `commit`; None for one whose size or hash is not told."""

    commit: str
    files: Mapping[str, HubFile | None]
