"""Explanations against histories told by hand, and against 1,000 random ones that brute force remembers whole."""

from __future__ import annotations

import json
import random
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest

from asyncpage.core.block_names import extend_chain, root_key, root_name, root_parts
from asyncpage.core.explanation import Explanations
from asyncpage.core.obituaries import Obituaries
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.messages import LayerGroup, Prefix, RequestId

SIZE = 4
FULL = (LayerGroup("full", 0, 1),)
INDEXES = (PrefixChain, PrefixTree)
ROOTS = (root_key(SIZE), root_key(SIZE, salt="s", adapter="a@1"))

Path = tuple[int, ...]


class House:
    """A pool, an index and their news: requests come one after the other and leave their prompts behind."""

    def __init__(
        self, index_class: type[PrefixIndex], blocks: int, groups: Sequence[LayerGroup] = FULL, most: int = 1000
    ) -> None:
        self.index = index_class(groups, SIZE)
        self.index.listener = self
        self.groups = len(groups)
        self.obituaries = Obituaries()
        self.explanations = Explanations(self.obituaries, SIZE, most)
        self.blank = list(range(blocks, 0, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.step = 0
        self.request = RequestId(0)

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None:
        """The obituaries do without."""

    def removed(self, name: bytes) -> None:
        self.obituaries.removed(name, self.step, self.request)

    def cleared(self) -> None:
        self.obituaries.cleared()

    def forget(self, block: int) -> None:
        """What the pool does with a cached block that it needs."""
        del self.cached[block]
        self.index.forget(block)
        self.blank.append(block)

    def serve(self, path: Sequence[int], root: bytes = ROOTS[0], label: str = "") -> list[int]:
        """Match, explain, compute, publish and end; returns the request's blocks, a group's after another's."""
        self.step += 1
        self.request = RequestId(self.request + 1)
        data = array("i", path).tobytes()
        prefix = Prefix(root, data, extend_chain(root_name(root), data, SIZE))
        match = self.index.match(prefix, len(path) - 1)
        self.explanations.admitted(self.step, self.request, label, prefix, match, self.index)
        length = len(match.blocks[0])
        for block in (*chain(*match.blocks), *match.donors):
            self.cached.pop(block, None)
        columns = []
        for ids in match.blocks:
            fresh = -(-len(path) // SIZE) - length
            while len(self.blank) < fresh:
                self.forget(next(iter(self.cached)))
            columns.append([*ids, *(self.blank.pop() for _ in range(fresh))])
        branch = match.branch
        for index in range(length, len(path) // SIZE):
            tokens = data[4 * SIZE * index : 4 * SIZE * (index + 1)]
            branch = self.index.publish(branch, prefix.names[index], tokens, [ids[index] for ids in columns])
        if len(path) % SIZE and branch is not None:
            tail = data[4 * SIZE * (len(path) // SIZE) :]
            self.index.publish_tail(branch, tail, [ids[-1] for ids in columns])
        for index in reversed(range(-(-len(path) // SIZE))):
            for block in [ids[index] for ids in columns] + (list(match.donors) if index == length else []):
                if self.index.holds(block):
                    self.cached[block] = None
                elif block and block not in self.blank:
                    self.blank.append(block)
        return [*chain(*columns)]

    def why(self, wanted: str | RequestId | None = None) -> Mapping[str, Any]:
        told = self.explanations.why(self.request if wanted is None else wanted)
        assert told is not None
        assert json.loads(json.dumps(told)) == told
        return told


@pytest.mark.parametrize("index_class", INDEXES)
def test_a_first_prompt_was_never_cached_and_its_last_block_is_partial(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 9)
    house.serve(range(10), ROOTS[1], "cmpl-1")
    assert house.why("cmpl-1") == {
        "request": 1,
        "label": "cmpl-1",
        "step": 1,
        "block_size": 4,
        "adapter": "a@1",
        "is_salted": True,
        "known_tokens": 10,
        "matched_tokens": 0,
        "matched_blocks": 0,
        "fetched_blocks": 0,
        "diverges": None,
        "missed": [{"first": 0, "count": 2, "reason": "never cached"}, {"first": 2, "count": 1, "reason": "partial"}],
    }


@pytest.mark.parametrize("index_class", INDEXES)
def test_the_first_token_that_differs_is_told_with_both_tokens(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 20)
    house.serve(range(10))
    house.serve([0, 1, 2, 3, 4, 5, 77, 7, 8, 9, 10, 11])
    told = house.why()
    assert told["diverges"] == {"position": 6, "expected": 77, "found": 6}
    assert (told["matched_tokens"], told["matched_blocks"]) == (6, 1)
    assert told["missed"] == [{"first": 1, "count": 2, "reason": "never cached"}]


@pytest.mark.parametrize("index_class", INDEXES)
def test_a_whole_prompt_that_is_cached_misses_only_the_block_of_its_last_token(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 20)
    house.serve(range(12))
    house.serve(range(12))
    told = house.why()
    assert (told["matched_tokens"], told["matched_blocks"], told["diverges"]) == (11, 2, None)
    assert told["missed"] == [{"first": 2, "count": 1, "reason": "partial"}]
    house.serve([*range(11), 99])
    told = house.why()
    assert (told["matched_tokens"], told["diverges"]) == (11, {"position": 11, "expected": 99, "found": 11})
    assert told["missed"] == [{"first": 2, "count": 1, "reason": "never cached"}]


@pytest.mark.parametrize("index_class", INDEXES)
def test_an_evicted_block_is_told_with_the_step_and_the_request_it_made_room_for(
    index_class: type[PrefixIndex],
) -> None:
    house = House(index_class, 5)
    house.serve(range(12), label="first")
    house.serve(range(100, 116), label="stranger")  # 4 blocks: 2 blank ones, and the last two of the first prompt
    house.serve(range(12), label="again")
    told = house.why("again")
    assert told["matched_blocks"] == 1
    assert told["missed"] == [
        {"first": 1, "count": 2, "reason": "evicted", "step": 2, "for_request": 2, "for_label": "stranger"}
    ]


@pytest.mark.parametrize("index_class", INDEXES)
def test_what_another_salt_or_adapter_has_is_told(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 20)
    house.serve(range(8), ROOTS[0])
    house.serve(range(12), ROOTS[1])
    assert house.why()["missed"] == [
        {"first": 0, "count": 2, "reason": "other salt or adapter"},
        {"first": 2, "count": 1, "reason": "never cached"},
    ]


@pytest.mark.parametrize("index_class", INDEXES)
def test_a_block_whose_part_of_a_window_is_gone_is_incomplete(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 20, (LayerGroup("full", 0, 1), LayerGroup("window", 5, 1)))
    blocks = house.serve(range(12))
    house.forget(blocks[3])  # the window group's first
    house.forget(blocks[4])  # and its second, which the token behind the second or third block looks at
    house.serve(range(12))
    assert house.why()["matched_blocks"] == 0
    assert house.why()["missed"][0] == {"first": 0, "count": 3, "reason": "incomplete"}


@pytest.mark.parametrize("index_class", INDEXES)
def test_only_the_last_admissions_are_kept_and_the_latest_of_one_label_is_told(index_class: type[PrefixIndex]) -> None:
    house = House(index_class, 9, most=2)
    for label in ("a", "b", "b"):
        house.serve(range(5), label=label)
    assert house.explanations.why("a") is None
    assert house.explanations.why(RequestId(1)) is None
    assert len(house.explanations) == 2
    assert house.why("b")["request"] == 3
    assert house.why(RequestId(2))["request"] == house.why("2")["request"] == 2


def test_a_request_that_does_not_know_all_names_is_explained_all_the_same() -> None:
    house = House(PrefixChain, 4)
    house.serve(range(12))
    house.serve(range(100, 116))
    data = array("i", range(12)).tobytes()
    prefix = Prefix(ROOTS[0], data, ())
    house.explanations.admitted(9, RequestId(9), "", prefix, house.index.match(prefix, 11), house.index)
    assert [run["reason"] for run in house.why(RequestId(9))["missed"]] == ["evicted"]


def test_blocks_that_come_from_outside_the_device_were_not_missed() -> None:
    house = House(PrefixChain, 4)
    house.serve(range(12))
    house.serve(range(100, 116))
    data = array("i", range(12)).tobytes()
    prefix = Prefix(ROOTS[0], data, extend_chain(root_name(ROOTS[0]), data, SIZE))
    match = house.index.match(prefix, 11)
    house.explanations.admitted(9, RequestId(9), "", prefix, match, house.index, fetched=2)
    told = house.why(RequestId(9))
    assert (told["matched_blocks"], told["fetched_blocks"], told["matched_tokens"]) == (0, 2, 8)
    assert [(run["first"], run["count"], run["reason"]) for run in told["missed"]] == [(2, 1, "evicted")]


def test_a_root_key_tells_what_it_was_made_of() -> None:
    assert root_parts(root_key(16, salt="é\0salt", adapter="x")) == {"block": "16", "adapter": "x", "salt": "é\0salt"}


# --- brute force ------------------------------------------------------------------------------------------------------


class Chronicle:
    """What happened to every block, by its path, found by reading from the end."""

    def __init__(self) -> None:
        self.published: list[tuple[bytes, Path]] = []  # that are held
        self.evicted: list[tuple[bytes, Path, int, int]] = []

    def reason(self, root: bytes, path: Path) -> tuple[Any, ...]:
        for dead_root, dead, step, request in reversed(self.evicted):
            if (dead_root, dead) == (root, path):
                return "evicted", step, request
        if any(other != root and held == path for other, held in self.published):
            return ("other salt or adapter",)
        return ("never cached",)


def history(index_class: type[PrefixIndex], seed: int) -> None:
    draw = random.Random(seed)
    house = House(index_class, draw.randint(6, 14))
    chronicle = Chronicle()
    where: dict[int, tuple[bytes, Path]] = {}
    seen: list[Path] = [()]
    forget = house.forget

    def note(block: int) -> None:
        if block in where:
            root, path = where.pop(block)
            chronicle.published.remove((root, path))
            chronicle.evicted.append((root, path, house.step, house.request))
        forget(block)

    house.forget = note  # type: ignore[method-assign]
    for _ in range(10):
        begun = draw.choice(seen)
        begun = begun[: draw.randint(0, len(begun))]
        path = (*begun, *(draw.randint(0, 1) for _ in range(draw.randint(1, 12))))[:20]
        root = draw.choice(ROOTS)
        seen.append(path)
        before = Chronicle()
        before.published, before.evicted = list(chronicle.published), list(chronicle.evicted)
        blocks = house.serve(path, root)
        told = house.why()

        wholes = [path[: SIZE * (i + 1)] for i in range(len(path) // SIZE)]
        length = 0
        while length < len(wholes) and SIZE * (length + 1) < len(path) and (root, wholes[length]) in before.published:
            length += 1
        expected = []
        for index in range(length, len(wholes)):
            is_there = (root, wholes[index]) in before.published
            expected.append(("partial",) if is_there else before.reason(root, wholes[index]))
        if len(path) % SIZE:
            expected.append(("partial",))
        missed = []
        for run in told["missed"]:
            assert run["first"] == length + len(missed)
            evicted = (run["step"], run["for_request"]) if run["reason"] == "evicted" else ()
            missed += [(run["reason"], *evicted)] * run["count"]
        assert missed == expected
        assert told["matched_blocks"] == length
        for index, whole in enumerate(wholes):
            if index >= length and (root, whole) not in chronicle.published:
                chronicle.published.append((root, whole))
                where[blocks[index]] = (root, whole)


@pytest.mark.parametrize("index_class", INDEXES)
def test_why_equals_brute_force_on_random_eviction_histories(index_class: type[PrefixIndex]) -> None:
    for seed in range(1000):
        history(index_class, seed)
