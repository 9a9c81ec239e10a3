"""The contract of a scheduling policy, who is served first, with the built-in ones and the victim policies.

A policy is a sort key. The scheduler asks it for each request: waiting ones are offered in its order, running ones
are served in it. A victim policy says at whose expense when blocks run out. Policies of others come by entry point,
see `policy_registry`; the waiting queue bounds how long any of them may keep somebody waiting.

INVARIANT: keys are unique and change only when `hit_blocks` does, so that the order of two requests that wait stands.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.sequence import Sequence
from asyncpage.messages import Int32

API = 1
"""The version of this contract."""

Key = tuple[int, ...]


class Policy(Protocol):
    """A class built without arguments; one object serves one scheduler.

    `api`: the version of the contract that it was written for. `name`: what it is called in messages. `wants_hits`:
    its keys depend on `sequence.hit_blocks`, which is then kept up to date while a request waits (else it stays 0).
    """

    api: ClassVar[int]
    name: ClassVar[str]
    wants_hits: ClassVar[bool]

    def key(self, sequence: Sequence) -> Key:
        """A request's place in the order, smallest first, always of one length.

        It ends with `sequence.arrival`, so that no two are equal. It may read what is fixed when the request comes
        (`prompt_tokens`, `limit`, `arrival`, `options`, `sampling`) and `hit_blocks`, nothing else.
        """
        ...


class Fcfs:
    """First come, first served; a preempted request is older than whoever waits, so it goes to the head."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "fcfs"
    wants_hits: ClassVar[bool] = False

    def key(self, sequence: Sequence) -> Key:
        return (sequence.arrival,)


class Priority:
    """The smallest `priority` first, then the oldest."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "priority"
    wants_hits: ClassVar[bool] = False

    def key(self, sequence: Sequence) -> Key:
        return (sequence.options.priority, sequence.arrival)


class LongestPrefix:
    """The most cached tokens first, then the oldest: it computes least, and what it uses is not evicted meanwhile."""

    api: ClassVar[int] = 1
    name: ClassVar[str] = "longest-prefix"
    wants_hits: ClassVar[bool] = True

    def key(self, sequence: Sequence) -> Key:
        return (-sequence.hit_blocks, sequence.arrival)


Column = NDArray[np.int32] | NDArray[np.int64]


class VictimPolicy(Protocol):
    """In what order running requests are preempted when blocks run out."""

    def __call__(self, order: Int32, *, priority: Column, admitted: Column, computed: Column) -> Int32:
        """The rows of `order` [R], which are in policy order, first to be preempted first.

        Columns over all rows: `priority` as the request gave it (smaller is served sooner), `admitted` numbers
        admissions (unique, a later one is larger), `computed` tokens.
        """
        ...


def last_admitted(order: Int32, *, priority: Column, admitted: Column, computed: Column) -> Int32:
    """The latest admission first: it has done the least work that is lost."""
    return order[np.argsort(admitted[order])[::-1]]


def lowest_priority(order: Int32, *, priority: Column, admitted: Column, computed: Column) -> Int32:
    """The largest priority number first, then the latest admission."""
    return order[np.lexsort((admitted[order], priority[order]))[::-1]]


def least_computed(order: Int32, *, priority: Column, admitted: Column, computed: Column) -> Int32:
    """The fewest computed tokens first, then the latest admission: the least is computed again."""
    return order[np.lexsort((-admitted[order].astype(np.int64), computed[order]))]


VICTIM_POLICIES: dict[str, VictimPolicy] = {
    "last-admitted": last_admitted,
    "priority": lowest_priority,
    "least-computed": least_computed,
}
