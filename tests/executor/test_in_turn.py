"""Two proposers one behind the other, each of which drafts what can be told to be its own."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from asyncpage.executor.speculation.in_turn import InTurn
from asyncpage.executor.speculation.proposer import Drafts, Proposer
from asyncpage.messages import Int32


class Fixed:
    """Drafts `most[row]` tokens, numbered from `first`, for whoever asks for so many; notes what it is told."""

    def __init__(self, most: dict[int, int], first: int, caches: tuple[Any, ...] = ()) -> None:
        self.most, self.first, self.caches = most, first, caches
        self.told: list[str] = []
        self.asked: list[list[int]] = []

    def clear(self) -> None:
        self.told.append("clear")

    def add(self, new: object) -> None:
        self.told.append(f"add {new}")

    def remove(self, row: int) -> None:
        self.told.append(f"remove {row}")

    def observe(self, *shown: object) -> None:
        self.told.append("observe")

    def propose(self, batch: object, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        self.asked.append(asked.tolist())
        own = [min(self.most.get(row, 0), count) for row, count in zip(rows.tolist(), asked.tolist(), strict=True)]
        tokens = [
            self.first + 10 * row + at for row, count in zip(rows.tolist(), own, strict=True) for at in range(count)
        ]
        return Drafts(np.array(own, dtype=np.int32), np.array(tokens, dtype=np.int32))


def drafts_of(first: dict[int, int], second: dict[int, int], asked: list[int]) -> tuple[list[list[int]], list[Fixed]]:
    """By row; rows are numbered from 5 on."""
    made = [Fixed(first, 1000), Fixed(second, 2000)]
    rows = np.arange(5, 5 + len(asked), dtype=np.int32)
    both = InTurn(*(cast(Proposer, one) for one in made))
    found = both.propose(cast(Any, None), rows, np.ones_like(rows), np.array(asked, dtype=np.int32))
    ends = np.cumsum(found.counts)
    return [found.tokens[end - count : end].tolist() for count, end in zip(found.counts, ends, strict=True)], made


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, [[], [], []]),
        ({5: 2}, {}, [[1050, 1051], [], []]),
        ({}, {6: 9}, [[], [2060, 2061, 2062], []]),
        ({6: 1}, {5: 1, 6: 3, 7: 2}, [[2050], [1060], [2070, 2071]]),
        ({5: 3, 7: 1}, {5: 3, 6: 1, 7: 3}, [[1050, 1051, 1052], [2060], [1070]]),
    ],
)
def test_the_second_drafts_for_those_that_the_first_has_nothing_for(
    first: dict[int, int], second: dict[int, int], expected: list[list[int]]
) -> None:
    found, made = drafts_of(first, second, [3, 3, 3])
    assert found == expected
    assert made[0].asked == [[3, 3, 3]]
    assert made[1].asked == [[0 if row in first else 3 for row in (5, 6, 7)]]


def test_no_more_are_asked_for_than_there_is_room_for() -> None:
    found, made = drafts_of({5: 4}, {6: 4, 7: 4}, [1, 0, 2])
    assert found == [[1050], [], [2070, 2071]]
    assert made[1].asked == [[0, 0, 2]]


def test_all_are_told_of_everything_and_all_their_caches_move() -> None:
    made = [Fixed({}, 0, ("a",)), Fixed({}, 0, ("b", "c"))]
    both = InTurn(*(cast(Proposer, one) for one in made))
    both.clear()
    both.add(cast(Any, 3))
    both.observe(*(cast(Any, None),) * 5)
    both.remove(3)
    assert [one.told for one in made] == [["clear", "add 3", "observe", "remove 3"]] * 2
    assert list(both.caches) == ["a", "b", "c"]
