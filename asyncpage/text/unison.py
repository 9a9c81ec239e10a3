"""Streams that are fed one id each, what a step does most: what is clear is looked up for all of them at once.

The detokenizer actor keeps all its streams in one, and names them by the slots it was given.

INVARIANT: a stream gives here what it would give alone, whoever is fed beside it. While it is in a slot, nobody but
the unison touches it, and its `tokens` are counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncpage.messages import Int32
from asyncpage.text.detokenize import Learner, TextStream

FEW = 2
"""Streams of a learner that are looked at one by one, where there are others: 1.7 us each, 5 for a learner's arrays."""

_ROOM = 64  # slots at first

Slots = NDArray[np.intp]
NO_SLOTS: Slots = np.empty(0, dtype=np.intp)


class Unison:
    """Streams in slots, and what of them is in columns: tokens, whether each is held, whom it learns with."""

    def __init__(self) -> None:
        self._streams: list[TextStream | None] = [None] * _ROOM
        self._free = list(range(_ROOM - 1, -1, -1))
        self._tokens: Int32 = np.zeros(_ROOM, dtype=np.int32)
        self._is_held: NDArray[np.bool_] = np.zeros(_ROOM, dtype=np.bool_)
        self._numbers: Int32 = np.zeros(_ROOM, dtype=np.int32)
        self._learners: dict[int, Learner] = {}  # of the streams that are here
        self._users = Counter[int]()
        self._slots: Slots = NO_SLOTS  # that were fed last, `_ahead` times more than the columns say
        self._ahead = 0
        self._groups: list[tuple[Learner, NDArray[np.intp]]] | None = None  # of these slots' rows

    def join(self, stream: TextStream) -> int:
        """The slot that the stream is in from now on."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        number = stream.learner.number
        self._streams[slot] = stream
        self._tokens[slot] = stream.tokens
        self._is_held[slot] = stream.is_held
        self._numbers[slot] = number
        self._users[number] += 1
        self._learners[number] = stream.learner
        self._groups = None
        return slot

    def leave(self, slot: int) -> TextStream:
        """The slot is free; the stream goes its own way."""
        self._write_down()
        self._slots, self._groups = NO_SLOTS, None
        stream = self._occupant(slot)
        stream.tokens = int(self._tokens[slot])
        self._streams[slot] = None
        self._free.append(slot)
        number = stream.learner.number
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number], self._learners[number]
        return stream

    def expect_end(self, slot: int, *, hides_last: bool) -> None:
        """`TextStream.expect_end` of one."""
        self._occupant(slot).expect_end(hides_last=hides_last)
        self._is_held[slot] = True

    def feed(self, slots: Slots, ids: Int32) -> tuple[list[str], list[int]]:
        """Feed each of these slots one id: the texts, and the places of those that are over.

        An array of slots that was given is not changed afterwards. 0.03 us an id that is clear, 2 for others.
        """
        if slots is not self._slots:
            self._write_down()
            self._slots, self._groups = slots, None
        unclear, shown = self._look(ids)
        unclear |= self._is_held.take(slots)
        texts: list[str] = shown.tolist()
        over = []
        for at in unclear.nonzero()[0].tolist():
            slot = int(slots[at])
            stream = self._occupant(slot)
            stream.tokens = int(self._tokens[slot]) + self._ahead
            texts[at] = stream.feed_one(int(ids[at]))
            self._is_held[slot] = stream.is_held
            if stream.is_over:
                over.append(at)
        self._ahead += 1
        return texts, over

    def feed_some(self, slot: int, ids: Sequence[int]) -> tuple[str, int, bool]:
        """`TextStream.feed` of one: the text, how many of the ids count, and whether it is over."""
        self._write_down()
        stream = self._occupant(slot)
        stream.tokens = before = int(self._tokens[slot])
        text = stream.feed(ids)
        self._tokens[slot] = stream.tokens
        self._is_held[slot] = stream.is_held
        return text, stream.tokens - before, stream.is_over

    def _look(self, ids: Int32) -> tuple[NDArray[np.bool_], NDArray[np.object_]]:
        """Which of the ids cannot be seen through at a glance, and the texts of the others."""
        if len(self._learners) == 1:
            (learner,) = self._learners.values()
            # What is beyond the vocabulary is clipped to the entry that stands for it.
            return learner.unclear.take(ids, mode="clip"), learner.column.take(ids, mode="clip")
        if self._groups is None:
            self._groups = self._by_learner()
        unclear: NDArray[np.bool_] = np.ones(len(ids), dtype=np.bool_)
        shown: NDArray[np.object_] = np.empty(len(ids), dtype=np.object_)
        for learner, rows in self._groups:
            own = ids.take(rows)
            unclear[rows] = learner.unclear.take(own, mode="clip")
            shown[rows] = learner.column.take(own, mode="clip")
        return unclear, shown

    def _by_learner(self) -> list[tuple[Learner, NDArray[np.intp]]]:
        """The learners of more than a few of the slots, and their rows."""
        numbers = self._numbers.take(self._slots)
        return [
            (self._learners[number], (numbers == number).nonzero()[0])
            for number, streams in Counter(numbers.tolist()).items()
            if streams > FEW
        ]

    def _write_down(self) -> None:
        """Bring the column of tokens up to date."""
        if self._ahead:
            self._tokens[self._slots] += self._ahead
            self._ahead = 0

    def _occupant(self, slot: int) -> TextStream:
        stream = self._streams[slot]
        assert stream is not None
        return stream

    def _grow(self) -> None:
        """Twice as many slots."""
        room = len(self._streams)
        self._streams += [None] * room
        self._free += range(2 * room - 1, room - 1, -1)
        self._tokens = np.pad(self._tokens, (0, room))
        self._is_held = np.pad(self._is_held, (0, room))
        self._numbers = np.pad(self._numbers, (0, room))
