"""The archive: keeps KV blocks in files, so that they outlive the process.

The KV manager sends `Store`, `Fetch`, `Touch` and `Discard`, each answered in turn by `Stored` or `Fetched`, the last
two by nothing; it is told `Shelved` once, when the folder has been looked through. All file work is done in a thread
of this actor, one file after another, so a slow disk never holds up the loop.

INVARIANT: a `Store` or `Fetch` is answered exactly once, whatever the disk does, and the slot that it names is not
touched after its answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

import structlog

from asyncpage.actors.base import Actor
from asyncpage.clock import Clock
from asyncpage.errors import FormatError, UnknownMessage
from asyncpage.messages import Discard, Fetch, Fetched, Shelved, Store, Stored, ToArchive, Touch
from asyncpage.pipes.host_arena import HostArena
from asyncpage.pipes.kv_folder import KvFolder
from asyncpage.pipes.mailbox import Address

log = structlog.get_logger("asyncpage.archive")

GRACE_S = 2.0  # a file of a few megabytes takes milliseconds; what hangs longer hangs in the kernel


class Archive(Actor):
    """Owns the folder and, with it, the arena's slots while they are stored or fetched."""

    name = "archive"

    def __init__(self, folder: KvFolder, arena: HostArena, kv_manager: Address, clock: Clock) -> None:
        self._folder = folder
        self._arena = arena
        self._kv_manager = kv_manager
        self._clock = clock
        self._work: SimpleQueue[ToArchive | None] = SimpleQueue()
        self._is_closing = False
        self._is_done = False  # the thread has nothing left to do
        self._gave_up = asyncio.Event()  # it has said so, or has taken too long
        self._thread: threading.Thread | None = None
        self._counts = dict.fromkeys(("stored", "fetched", "store_failures", "fetch_failures", "removed"), 0)
        self._is_failing = False  # so that a full disk is one line in the log, not one a block

    def started(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(clock.wall(),), name="archive", daemon=True)
        self._thread.start()

    def receive(self, message: object) -> None:
        match message:
            case Store() | Fetch() | Touch() | Discard():
                self._work.put(message)
            case _:
                raise UnknownMessage(self, message)

    def stats(self) -> Mapping[str, float]:
        return {**self._counts, "waiting": float(self._work.qsize())}

    async def closed(self) -> None:
        """Finish the file at hand, and leave the rest."""
        if self._thread is None:
            return
        self._is_closing = True
        self._work.put(None)
        timer = self._clock.call_later(GRACE_S, self._gave_up.set)
        await self._gave_up.wait()
        timer.cancel()
        if self._is_done:
            self._thread.join()

    # --- on the loop: what the thread has found -----------------------------------------------------------------------

    def _shelved(self, shelved: Shelved, damaged: int, foreign: int) -> None:
        tell = log.warning if damaged or foreign else log.info
        blocks = len(shelved.labels)
        tell("archive.opened", folder=str(self._folder.path), blocks=blocks, damaged=damaged, foreign=foreign)
        self._kv_manager.send(shelved)

    def _stored(self, stored: Stored, error: OSError | None) -> None:
        self._counts["stored" if stored.is_stored else "store_failures"] += 1
        self._counts["removed"] += len(stored.removed)
        if error is not None and not self._is_failing:
            log.error("archive.store_failed", folder=str(self._folder.path), reason=str(error))
        self._is_failing = error is not None
        self._kv_manager.send(stored)

    def _fetched(self, fetched: Fetched, error: Exception | None) -> None:
        self._counts["fetched" if fetched.is_there else "fetch_failures"] += 1
        if error is not None:
            log.warning("archive.fetch_failed", reason=str(error))
        self._kv_manager.send(fetched)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self, now: float) -> None:
        try:
            self._scan(now)
            while (work := self._work.get()) is not None and not self._is_closing:
                self._do(work)
        except Exception as error:  # a fault of ours: the actor dies of it, so that no answer is waited for in vain
            self._call(self.guard(partial(_raise, error)))
        finally:
            self._is_done = True
            self._call(self._gave_up.set)

    def _scan(self, now: float) -> None:
        try:
            shelf = self._folder.scan(now)
        except OSError as error:
            log.error("archive.unreadable", folder=str(self._folder.path), reason=str(error))
            return
        self._call(self.guard(partial(self._shelved, Shelved(shelf.labels), shelf.damaged, shelf.foreign)))

    def _do(self, work: ToArchive) -> None:
        match work:
            case Store():
                self._call(self.guard(partial(self._stored, *self._store(work))))
            case Fetch():
                self._call(self.guard(partial(self._fetched, *self._fetch(work))))
            case Touch():
                self._folder.touch(work.keys)
            case Discard():
                self._folder.discard()

    def _store(self, store: Store) -> tuple[Stored, OSError | None]:
        payload = self._arena.slot(store.slot)
        removed = self._folder.make_room(store.label, payload)
        try:
            self._folder.store(store.label, payload)
        except OSError as error:
            return Stored(store.slot, is_stored=False, removed=removed), error
        return Stored(store.slot, is_stored=True, removed=removed), None

    def _fetch(self, fetch: Fetch) -> tuple[Fetched, Exception | None]:
        try:
            self._folder.fetch(fetch.label, self._arena.slot(fetch.slot))
        except (FormatError, OSError) as error:
            return Fetched(fetch.slot, is_there=False), error
        return Fetched(fetch.slot, is_there=True), None

    def _call(self, callback: Callable[[], object]) -> None:
        """Have the loop call it, unless the loop is gone."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)


def _raise(error: Exception) -> None:
    raise error
