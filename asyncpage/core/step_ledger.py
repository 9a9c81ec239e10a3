"""Which steps an executor owes an answer for, and which epochs still mean anything.

Kept by the executor's near end. The scheduler learns of a loss or a failed step later than the near end does; what it
sends in between was meant for rows that are gone.

INVARIANT: answers are due in the order of sending; after `lost` or a failed step no step of that epoch is sent on.
"""

from __future__ import annotations

from collections import deque

FIRST_EPOCH = 1


class StepLedger:
    """Steps in flight by (epoch, number), and the epoch bounds."""

    def __init__(self) -> None:
        self._due: deque[tuple[int, int]] = deque()
        self.epoch = FIRST_EPOCH
        """The greatest epoch that can be in use."""
        self.oldest_epoch = FIRST_EPOCH
        """Steps of lower epochs are dropped."""

    def __len__(self) -> int:
        return len(self._due)

    def due(self) -> tuple[int, int] | None:
        """(epoch, number) of the step that must be answered next."""
        return self._due[0] if self._due else None

    def is_current(self, epoch: int) -> bool:
        """Note that the scheduler has used `epoch`; whether its step still has rows to work on."""
        self.epoch = max(self.epoch, epoch)
        return epoch >= self.oldest_epoch

    def sent(self, epoch: int, number: int) -> None:
        """A step went to the executor."""
        self._due.append((epoch, number))

    def answered(self, epoch: int, number: int) -> bool:
        """The executor answered a step; False when that was not the one due."""
        if self.due() != (epoch, number):
            return False
        self._due.popleft()
        return True

    def failed(self, epoch: int) -> None:
        """A step of `epoch` failed: the executor drops the rest of that epoch unanswered."""
        while self._due and self._due[0][0] <= epoch:
            self._due.popleft()
        self.oldest_epoch = self.epoch = max(self.epoch, epoch + 1)

    def lost(self) -> int:
        """The executor is gone with everything in flight. Returns the epoch that is lost; the next one begins."""
        self._due.clear()
        lost, self.epoch = self.epoch, self.epoch + 1
        self.oldest_epoch = self.epoch
        return lost
