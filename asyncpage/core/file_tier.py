"""The lower tier: which blocks lie in files, what the archive has in hand, and who waits for it.

Part of the tiers' state (`tier.py`); the archive's answers come here. A slot that is to be stored or fetched holds a
pin until it is done. Bounded: the archive has few of either in hand at a time, and no more wait than there are slots.

INVARIANT: whoever waits for files is woken, whatever the archive answers, also when it answers no more (`give_up`), and
whatever is cleared meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from asyncpage.core.host_slots import HostSlots
from asyncpage.messages import BlockLabel, Discard, Fetch, Fetched, RequestId, Shelved, Store, Stored, ToArchive, Touch

MOST_STORES = 2  # in the archive's hands: one that is written and one that is next; a fetch stands behind these
MOST_FETCHES = 16  # the same; so many answers may come in one go
MOST_ATTEMPTS = 2  # that a request waits for files; what has not stayed in the host by then is computed
_REMEMBERED = 4096  # requests whose attempts are counted


class FileTier:
    """Files of blocks, reached through `slots`. `is_on` False: there is no archive, and nothing is ever stored."""

    def __init__(self, slots: HostSlots, *, is_on: bool) -> None:
        self._slots = slots
        self._is_on = is_on
        self._is_silent = False  # given up: nobody waits for files until the archive answers again
        self._labels: dict[bytes, BlockLabel] = {}  # by key
        self._unstored: deque[int] = deque()  # slots, each with a pin
        self._storing: dict[int, BlockLabel] = {}  # by slot, in the archive's hands
        self._unfetched: deque[int] = deque()  # slots, each with a pin
        self._fetching: dict[int, BlockLabel] = {}  # by slot, in the archive's hands
        self._coming: set[bytes] = set()  # keys of both
        self._waiting: dict[bytes, list[RequestId]] = {}
        self._missing: dict[RequestId, int] = {}
        self._attempts: OrderedDict[RequestId, int] = OrderedDict()
        self._woken: list[RequestId] = []
        self._work: list[ToArchive] = []

    def __len__(self) -> int:
        """Blocks that lie in files."""
        return len(self._labels)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for files."""
        return bool(self._missing)

    def give_up(self) -> None:
        """The archive has not answered for too long: whoever waits is woken, to be computed."""
        self._is_silent = True
        self._wake_all()

    def label(self, key: bytes) -> BlockLabel | None:
        """What lies in a file."""
        return self._labels.get(key)

    def is_coming(self, key: bytes) -> bool:
        """Whether the block is on its way into a slot."""
        return key in self._coming

    def keep(self, slot: int, label: BlockLabel) -> None:
        """The slot's bytes are in place: write them to a file, unless there is one."""
        if self._is_on and label.key not in self._labels:
            self._unstored.append(slot)
            self._slots.pin(slot)
            self._store()

    def fetch(self, request: RequestId, labels: Sequence[BlockLabel]) -> bool:
        """Let `request` wait until these, for which there are slots, have come. False: it must not wait any more."""
        if request in self._missing:
            return True
        if self._is_silent or self._attempts.get(request, 0) >= MOST_ATTEMPTS:
            return False
        for label in labels:
            if label.key not in self._coming:
                slot = self._slots.take(label)
                assert slot is not None
                self._coming.add(label.key)
                self._unfetched.append(slot)
            self._waiting.setdefault(label.key, []).append(request)
        self._missing[request] = len(labels)
        self._attempts[request] = self._attempts.pop(request, 0) + 1
        if len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)
        self._fetch()
        return True

    def used(self, request: RequestId, labels: Sequence[BlockLabel]) -> None:
        """The request has got its blocks, from slots: their files were of use."""
        self._attempts.pop(request, None)
        touched = tuple(label.key for label in labels if label.key in self._labels)
        if touched:
            self._work.append(Touch(touched))

    def clear(self) -> None:
        """Nothing in files is of use. The slots are cleared already."""
        for key in list(self._labels):
            self._lose(key)
        self._coming.clear()
        self._wake_all()
        self._store()  # these let go of slots that were to be stored or fetched
        self._fetch()
        if self._is_on:
            self._work.append(Discard())

    def woken(self) -> tuple[RequestId, ...]:
        """Requests that need wait no longer, told once."""
        woken = tuple(self._woken)
        self._woken.clear()
        return woken

    def work(self) -> list[ToArchive]:
        """What the archive is to do, told once, in this order."""
        work, self._work = self._work, []
        return work

    # --- the archive's answers ----------------------------------------------------------------------------------------

    def shelved(self, shelved: Shelved) -> None:
        """What lay in the folder at the start."""
        for label in shelved.labels:
            self._gain(label)

    def stored(self, stored: Stored) -> None:
        """A slot is written, or could not be."""
        self._is_silent = False
        label = self._storing.pop(stored.slot)
        for key in stored.removed:
            self._lose(key)
        if stored.is_stored and self._slots.label(stored.slot) is label:  # it was not cleared meanwhile
            self._gain(label)
        self._slots.unpin(stored.slot)
        self._store()

    def fetched(self, fetched: Fetched) -> None:
        """A slot is filled, or the file is gone or damaged."""
        self._is_silent = False
        slot = fetched.slot
        label = self._fetching.pop(slot)
        if self._slots.label(slot) is label:
            self._coming.remove(label.key)
            if fetched.is_there:
                self._slots.show(slot)
            else:
                self._slots.unlabel(slot)
                self._lose(label.key)
            self._arrived(label.key)
        self._slots.unpin(slot)
        self._fetch()

    def _gain(self, label: BlockLabel) -> None:
        if label.key not in self._labels:
            self._labels[label.key] = label
            if self._slots.listener is not None:
                self._slots.listener.arrived(label, "disk")

    def _lose(self, key: bytes) -> None:
        label = self._labels.pop(key, None)
        if label is not None and self._slots.listener is not None:
            self._slots.listener.left(label, "disk")

    def _fetch(self) -> None:
        while self._unfetched and len(self._fetching) < MOST_FETCHES:
            slot = self._unfetched.popleft()
            label = self._slots.label(slot)
            if label is None:
                self._slots.unpin(slot)
            else:
                self._fetching[slot] = label
                self._work.append(Fetch(label, slot))

    def _store(self) -> None:
        while self._unstored and len(self._storing) < MOST_STORES:
            slot = self._unstored.popleft()
            label = self._slots.label(slot)
            if label is None:
                self._slots.unpin(slot)
            else:
                self._storing[slot] = label
                self._work.append(Store(slot, label))

    def _wake_all(self) -> None:
        for key in list(self._waiting):
            self._arrived(key)

    def _arrived(self, key: bytes) -> None:
        for request in self._waiting.pop(key, ()):
            self._missing[request] -= 1
            if not self._missing[request]:
                del self._missing[request]
                self._woken.append(request)
