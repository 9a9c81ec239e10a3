"""A cheap identity of model files: equal for equal files, different for different models.

Checkpoints compute it when they open; the handshake compares it after a restart.

INVARIANT: it depends on the files' bytes only, never on paths or times. It reads headers whole and a fixed sample
of the data, so it tells models apart but does not prove that nobody altered a weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol

from asyncpage.formats.mapped_file import Bytes

SAMPLES = 64
SAMPLE_BYTES = 4096  # a page


class Readable(Protocol):
    """What both readers of containers offer."""

    def header(self) -> Bytes: ...

    def data(self) -> Bytes: ...


def fingerprint(settings: bytes, files: Iterable[Readable]) -> str:
    """SHA-256, in hexadecimal, over `settings` and each file's header, data length and sampled pages.

    Every part is preceded by its length, so that no two sequences of parts run together.
    """
    digest = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    add(settings)
    for file in files:
        data = file.data()
        add(file.header().data)
        add(len(data).to_bytes(8, "little"))
        last = max(0, len(data) - SAMPLE_BYTES)
        for index in range(SAMPLES):
            start = last * index // (SAMPLES - 1)
            add(data[start : start + SAMPLE_BYTES].data)
    return digest.hexdigest()
