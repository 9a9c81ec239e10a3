"""Records what two actors are given and what comes of it: the film that a live engine makes.

`actors/recorded.py` tells it; it writes records and appends them to the journal's writer. It is also the time that the
recorded actors see: read once for each cause and still until the next, so that a replay can give them the same.

INVARIANT: telling it never raises. A message that cannot be written ends the recording, not the actor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

import asyncpage
from asyncpage.clock import Clock
from asyncpage.config import EngineConfig
from asyncpage.messages import NO_PARENT, Admit, BlockLabel, Handshake, Shelved
from asyncpage.pipes.journal.dialect import journal_dialect, shapes
from asyncpage.pipes.journal.pseudonym import KEY_BYTES, Names, Pseudonyms, TrueIds
from asyncpage.pipes.journal.record import (
    ACTORS,
    BATCH_END,
    DIED,
    FIRED,
    RECEIVED,
    RESUMED,
    ROOT,
    SENT,
    TAKEN,
    Head,
    pack_head,
)
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.pipes.journal.writer import JournalWriter
from asyncpage.pipes.record import scalar

_MOST_ROOTS = 65_536  # salts and adapters whose blocks from files a replay finds
_NUMBERS = {name: number for number, name in enumerate(ACTORS)}


class Recorder:
    """Made before the actors are, closed after they have ended."""

    def __init__(
        self,
        files: SegmentFiles,
        clock: Clock,
        *,
        config: EngineConfig,
        handshake: Handshake,
        seed: int,
        eos_ids: tuple[int, ...],
        first_name: Callable[[str, str, bytes], bytes] | None = None,
    ) -> None:
        """Begins the journal. `first_name`: of the first block with these tokens under a salt and adapter.

        Errors: `OSError`.
        """
        key = os.urandom(KEY_BYTES)  # kept nowhere: without it nobody comes from a pseudonym to an id
        names: Names = TrueIds(key) if config.journal_tokens else Pseudonyms(key, handshake.vocab_size)
        self._clock = clock
        self._time = clock.now()
        self._wall_offset = clock.wall() - self._time
        self._on_the_way: dict[str, deque[object]] = {name: deque() for name in ACTORS}
        dialect = journal_dialect(names)
        self._plain = dialect.plain
        self._packer = msgpack.Packer(default=scalar, unicode_errors="surrogatepass")
        recording = os.urandom(16)

        def head_of(segment: int) -> bytes:
            return pack_head(
                Head(
                    version=asyncpage.__version__,
                    recording=recording,
                    segment=segment,
                    config=config,
                    handshake=handshake,
                    seed=seed,
                    eos_ids=names.of_ids(eos_ids),
                    has_tokens=config.journal_tokens,
                    wall_offset=self._wall_offset,
                    shapes=shapes(),
                )
            )

        self._writer = JournalWriter(files, head_of)
        self._names = names
        self._first_name = first_name
        self._roots = {("", "")}
        self._rootless: dict[bytes, BlockLabel] = {}  # first blocks from files whose salt has not come yet

    def now(self) -> float:
        return self._time

    def wall(self) -> float:
        return self._time + self._wall_offset

    def received(self, actor: str, message: object) -> None:
        self._time = time = self._clock.now()
        on_the_way = self._on_the_way[actor]
        if on_the_way and on_the_way[0] is message:
            on_the_way.popleft()
            self._put((TAKEN, _NUMBERS[actor], time))
        else:
            if self._first_name is not None and isinstance(message, Shelved | Admit):
                self._tell_roots(message, self._first_name)
            self._put_message(lambda plain: (RECEIVED, _NUMBERS[actor], time, type(message).__name__, plain), message)

    def batch_ended(self, actor: str) -> None:
        self._time = time = self._clock.now()
        self._put((BATCH_END, _NUMBERS[actor], time))

    def fired(self, actor: str, timer: int) -> None:
        self._time = time = self._clock.now()
        self._put((FIRED, _NUMBERS[actor], time, timer))

    def resumed(self, actor: str) -> None:
        self._time = time = self._clock.now()
        self._put((RESUMED, _NUMBERS[actor], time))

    def sent(self, actor: str, to: str, message: object) -> None:
        if to in self._on_the_way:
            self._on_the_way[to].append(message)
        # Packed by itself, so that a replay can compare bytes without reading them.
        self._put_message(
            lambda plain: (SENT, _NUMBERS[actor], to, type(message).__name__, self._packer.pack(plain)), message
        )

    def died(self, actor: str, error: Exception) -> None:
        self._put((DIED, _NUMBERS[actor], f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """Write what waits; may be called twice."""
        self._writer.close()

    def _tell_roots(self, message: Shelved | Admit, first_name: Callable[[str, str, bytes], bytes]) -> None:
        """Say to which salts and adapters first blocks from files belong: both must have come, in any order."""
        if isinstance(message, Shelved):
            self._rootless = {label.name: label for label in message.labels if label.parent == NO_PARENT}
            roots = list(self._roots)
        else:
            roots = [(message.options.cache_salt, message.options.adapter)]
            if roots[0] in self._roots or len(self._roots) == _MOST_ROOTS:
                return
            self._roots.add(roots[0])
        for salt, adapter in roots:
            for name, label in list(self._rootless.items()):
                if first_name(salt, adapter, label.tokens) == name:
                    del self._rootless[name]
                    self._put((ROOT, self._names.of_digest(name), self._names.of_word(salt), adapter))

    def _put(self, record: tuple[Any, ...]) -> None:
        self._writer.append(self._packer.pack(record))

    def _put_message(self, record_of: Callable[[Any], tuple[Any, ...]], message: object) -> None:
        if self._writer.is_stopped:
            return
        try:
            self._put(record_of(self._plain(message)))
        except Exception as error:
            self._writer.stop(f"it cannot hold a {type(message).__name__}: {type(error).__name__}: {error}")
