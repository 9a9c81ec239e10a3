"""Pool, index and settlement together, with an executor that remembers which tokens every slot was computed after.

A small scheduler (first come, first served, one or two steps in flight) drives `settle` with random requests. The KV of
a token depends on every token before it, so a slot is written as the whole path up to its token: whoever reads a slot
with another path sees somebody else's KV.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.block_names import chain_names, root_key
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.settlement import Memory, Rules, settle
from asyncpage.messages import Candidate, Granted, Int32, LayerGroup, Prefix, Released, RequestId, Reserve

ROWS = 5
FULL = LayerGroup("full", 0, 1)
GROUPS = ((FULL,), (FULL, LayerGroup("window", 6, 1)), (LayerGroup("window", 5, 1),), (FULL, FULL))

Path = tuple[int, ...]


def int32(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


@dataclass(eq=False)
class Request:
    """`filled`: its blocks that are told to be full; `life`: how often it was let in."""

    number: RequestId
    salt: str
    known: list[int]
    target: int
    computed: int = 0
    row: int = -1
    filled: int = 0
    life: int = 0
    reads: bool = True
    feeds: bool = True


@dataclass
class Flight:
    number: int
    rows: list[tuple[Request, int, int]]  # with its life and its computed tokens at the end


@dataclass
class Engine:
    memory: Memory
    groups: tuple[LayerGroup, ...]
    size: int
    draw: random.Random
    depth: int
    waiting: deque[Request] = field(default_factory=deque)
    parked: dict[int, Request] = field(default_factory=dict)
    running: list[Request] = field(default_factory=list)
    flights: deque[Flight] = field(default_factory=deque)
    released: list[Released] = field(default_factory=list)
    full: list[tuple[int, int, list[int]]] = field(default_factory=list)
    kv: dict[int, list[Path]] = field(default_factory=dict)  # by block, a path a slot
    tables: dict[int, list[list[int]]] = field(default_factory=dict)  # by row, one a group
    number: int = 0
    returned: int = 0
    finished: list[RequestId] = field(default_factory=list)
    preemptions: int = 0

    # one step

    def step(self, budget: int) -> None:
        self.number += 1
        reserve = self.reserve(budget)
        granted, has_unnamed = settle(self.memory, reserve)
        if has_unnamed:
            self.memory.publish(reserve)
        self.released, self.full = [], []
        assert int(granted.counts.sum()) <= budget
        self.preempt(granted)
        self.let_in(granted)
        self.compute(granted)
        self.check_ledger()
        self.flights.append(
            Flight(self.number, [(r, r.life, r.computed) for r in self.running if r.row in granted.rows.tolist()])
        )
        while len(self.flights) >= self.depth:
            self.back(self.flights.popleft())

    def reserve(self, budget: int) -> Reserve:
        computed, wants = np.zeros(ROWS, dtype=np.int32), np.zeros(ROWS, dtype=np.int32)
        for request in self.running:
            computed[request.row] = request.computed
            wants[request.row] = len(request.known) - request.computed
        order = np.array([request.row for request in self.running], dtype=np.int32)
        free = [row for row in range(ROWS) if row not in order.tolist()]
        self.draw.shuffle(free)
        return Reserve(
            number=self.number,
            returned=self.returned,
            order=order,
            computed=computed,
            wants=wants,
            victims=order[::-1],
            candidates=tuple(self.candidate(request) for request in list(self.waiting)[:4]),
            budget_tokens=budget,
            free_rows=tuple(free),
            released=tuple(self.released),
            filled=np.array([place[:2] for place in self.full], dtype=np.int32).reshape(-1, 2),
            filled_tokens=np.array([place[2] for place in self.full], dtype=np.int32).reshape(-1, self.size),
        )

    def candidate(self, request: Request) -> Candidate:
        data = int32(request.known)
        names = chain_names(data, self.size, salt=request.salt)
        prefix = Prefix(root_key(self.size, salt=request.salt), data, names)
        return Candidate(request.number, len(request.known), prefix, read_cache=request.reads, feed_cache=request.feeds)

    def preempt(self, granted: Granted) -> None:
        for row in granted.victims:
            victim = next(request for request in self.running if request.row == row)
            self.running.remove(victim)
            self.waiting.appendleft(victim)
            victim.row = -1
            self.preemptions += 1
        for row, group, index, block in granted.blocks.tolist():
            table = self.tables[row][group]
            table += [0] * (index + 1 - len(table))
            table[index] = block

    def let_in(self, granted: Granted) -> None:
        assert not (granted.victims and granted.admitted)
        for number in granted.parked:
            request = next(request for request in self.waiting if request.number == number)
            self.waiting.remove(request)
            self.parked[number] = request
        for source, destination, count in granted.copies.tolist():
            kept = self.kv.setdefault(destination, [()] * self.size)
            kept[:count] = self.kv[source][:count]
        for admission in granted.admitted:
            request = next(request for request in self.waiting if request.number == admission.request)
            self.waiting.remove(request)
            self.running.append(request)
            request.row, request.computed, request.life = admission.row, admission.computed, request.life + 1
            request.filled = admission.computed // self.size
            self.tables[admission.row] = [np.frombuffer(one, dtype=np.int32).tolist() for one in admission.tables]
            assert admission.computed < len(request.known)
        self.wake(granted)

    def wake(self, granted: Granted) -> None:
        self.waiting += [self.parked.pop(number) for number in granted.woken if number in self.parked]

    def compute(self, granted: Granted) -> None:
        """Every row reads what its tokens look at, and writes their own slots."""
        for row, count in zip(granted.rows.tolist(), granted.counts.tolist(), strict=True):
            request = next(request for request in self.running if request.row == row)
            path = tuple(request.known)
            for group, (spec, table) in enumerate(zip(self.groups, self.tables[row], strict=True)):
                assert table == self.memory.tables.tables[group, row, : len(table)].tolist()
                for at in range(request.computed, request.computed + count):
                    block = table[at // self.size]
                    assert block > 0
                    self.kv.setdefault(block, [()] * self.size)[at % self.size] = path[: at + 1]
                at = request.computed + count - 1
                first = 0 if spec.kind == "full" else max(0, request.computed - spec.window + 1)
                for seen in range(first, at + 1):
                    assert self.kv[table[seen // self.size]][seen % self.size] == path[: seen + 1]
            request.computed += count
            assert request.computed <= len(request.known)

    def back(self, flight: Flight) -> None:
        """A step returns: tokens are sampled, blocks are full, requests end."""
        self.returned = flight.number
        for request, life, computed in flight.rows:
            if request.life != life or request.row < 0:
                continue
            for index in range(request.filled, computed // self.size):
                self.full.append((request.row, index, request.known[index * self.size : (index + 1) * self.size]))
            request.filled = max(request.filled, computed // self.size)
            if computed == len(request.known):
                request.known.append(self.draw.randint(0, 1))
                if len(request.known) >= request.target or self.draw.random() < 0.02:
                    self.end(request)

    def end(self, request: Request) -> None:
        self.released.append(Released(request.row, int32(request.known[request.filled * self.size : request.computed])))
        self.running.remove(request)
        request.row = -1
        self.finished.append(request.number)

    # what must always hold

    def check_ledger(self) -> None:
        ledger = self.memory.tables.ledger()
        assert ledger.blank + ledger.cached + ledger.referenced == ledger.total
        live = {block for request in self.running for table in self.tables[request.row] for block in table if block}
        assert len(live) <= ledger.referenced <= len(live) + ledger.leaving

    def snapshot(self) -> tuple[Any, ...]:
        tables = self.memory.tables
        blocks = range(1, tables.pool.total + 1)
        live = [request.row for request in self.running]
        return (
            tables.ledger(),
            [tables.pool.references(block) for block in blocks],
            [block for block in blocks if tables.index.holds(block)],
            tables.held.tolist(),
            tables.tables[:, live].tolist(),
            len(self.memory.sharing),
        )

    def fail(self, request: Request) -> None:
        """Settle a step in which nothing happens but that somebody asks for more than there is."""
        self.number += 1
        idle = self.reserve(1000)
        nothing: Int32 = np.zeros(ROWS, dtype=np.int32)
        candidate = self.candidate(request)
        self.memory.tables.collect(returned=self.returned)
        before = self.snapshot()
        reserve = Reserve(
            idle.number,
            idle.returned,
            idle.order,
            idle.computed,
            nothing,
            idle.victims,
            (candidate,),
            1000,
            (ROWS - 1,),
        )
        granted, _ = settle(self.memory, reserve)
        assert granted.admitted == granted.victims == ()
        assert len(granted.blocks) == len(granted.copies) == len(granted.rows) == 0
        if not granted.parked:
            assert self.snapshot() == before
        self.wake(granted)
        self.flights.append(Flight(self.number, []))


def build(
    index_class: type[PrefixIndex],
    groups: tuple[LayerGroup, ...],
    size: int,
    blocks: int,
    depth: int,
    rules: Rules,
    seed: int,
) -> Engine:
    tables = BlockTables(
        blocks=blocks + 1, block_size=size, groups=groups, rows=ROWS, max_tokens=200, index=index_class(groups, size)
    )
    return Engine(Memory(tables, rules), groups, size, random.Random(seed), depth)


@pytest.mark.parametrize("index_class", [PrefixChain, PrefixTree])
@settings(max_examples=60, deadline=None)
@given(
    groups=st.sampled_from(GROUPS),
    size=st.integers(1, 5),
    spare=st.integers(0, 20),
    depth=st.integers(1, 2),
    whole_prompt=st.booleans(),
    watermark=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_no_request_reads_anothers_kv_the_ledger_adds_up_and_everybody_finishes(
    index_class: type[PrefixIndex],
    groups: tuple[LayerGroup, ...],
    size: int,
    spare: int,
    depth: int,
    whole_prompt: bool,
    watermark: int,
    seed: int,
) -> None:
    longest = 24
    blocks = -(-longest // size) * len(groups) + spare  # the longest fits alone
    rules = Rules(whole_prompt=whole_prompt, watermark_blocks=watermark, long_prefill_tokens=seed % 3 * 4)
    engine = build(index_class, groups, size, blocks, depth, rules, seed)
    draw = engine.draw
    seen: list[list[int]] = [[]]
    for number in range(1, 13):
        begun = draw.choice(seen)
        prompt = (begun[: draw.randint(0, len(begun))] + [draw.randint(0, 1) for _ in range(draw.randint(1, 12))])[:20]
        seen.append(prompt)
        engine.waiting.append(
            Request(
                RequestId(number),
                draw.choice(["", "", "", "a"]),
                list(prompt),
                draw.randint(len(prompt) + 1, longest),
                reads=draw.random() > 0.1,
                feeds=draw.random() > 0.1,
            )
        )
        for _ in range(draw.randint(0, 4)):
            engine.step(draw.randint(1, 20))
        if whole_prompt and draw.random() < 0.3:
            stranger = [*draw.choice(seen), *range(100, 100 + size * (blocks + 1))]
            engine.fail(Request(RequestId(1000 + number), "", stranger[:200], 0))
        if draw.random() < 0.1:
            engine.memory.forget_prefixes()
    for _ in range(3000):
        if not (engine.waiting or engine.running or engine.parked):
            break
        engine.step(draw.randint(1, 20))
    assert sorted(engine.finished) == list(range(1, 13))
    for _ in range(depth + 1):  # until every step is back and the next settlement has seen it
        engine.step(1)
    ledger = engine.memory.tables.ledger()
    assert (ledger.referenced, ledger.blank + ledger.cached) == (0, blocks)
