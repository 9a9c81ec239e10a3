"""Any history of settlements against plain bookkeeping, with an executor whose tokens tell whether a block was right.

The machine is a scheduler in its simplest form: requests come, are offered in their order, run, end, are cancelled,
lose their executor; steps come back one by one. After every settlement each block is looked for in the tables that
the executor was told of.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.memory import Memory, Rules
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.sampling import SamplingParams
from asyncpage.core.settlement import settle
from asyncpage.messages import (
    Admission,
    Candidate,
    Granted,
    Int32,
    LayerGroup,
    NewRow,
    Prefix,
    Released,
    RequestId,
    Reserve,
    Step,
)
from asyncpage.testing.toy_runner import ToyRunner, toy_handshake, toy_tokens

SIZE = 4
ROWS = 4
MOST = 24  # tokens of one request
VOCAB = 97
ROOT = root_key(SIZE)
FULL = LayerGroup("full", 0, 1)
GROUPS = [
    (FULL,),
    (FULL,),
    (FULL, LayerGroup("window", 6, 1)),
    (LayerGroup("window", 3, 1), LayerGroup("window", 9, 1)),
]


def ints(numbers: Sequence[int]) -> Int32:
    return np.array(numbers, dtype=np.int32)


def entries(tokens: int) -> int:
    return -(-tokens // SIZE)


@dataclass(eq=False)
class Request:
    """One request, and what the executor was told of its row. `life`: how often it has been let in."""

    number: int
    prompt: list[int]
    answer: list[int]  # the right one
    feeds: bool
    reads: bool
    tokens: list[int] = field(default_factory=list)
    row: int = -1
    life: int = 0
    known: int = 0  # with what steps in flight will bring
    computed: int = 0
    settled: int = 0
    filled: int = 0
    tables: list[dict[int, int]] = field(default_factory=list)
    is_over: bool = False

    @property
    def last(self) -> int:
        """Most tokens that it computes."""
        return len(self.prompt) + len(self.answer) - 1

    def blocks(self, groups: Sequence[LayerGroup], computed: int) -> set[int]:
        """What a step that computes from `computed` on may look at or write."""
        return {
            block
            for spec, table in zip(groups, self.tables, strict=True)
            for index, block in table.items()
            if block and index >= spec.first_needed(computed, SIZE)
        }


@dataclass
class InFlight:
    step: Step
    served: dict[int, tuple[Request, int, int]]  # by row: request, life, computed after it
    drafts: dict[int, int]  # by row that samples
    looked_at: dict[tuple[int, int], set[int]]  # by request and life
    copied: dict[int, int]  # slots by source

    @property
    def most_behind(self) -> int:
        return 1 + max(self.drafts.values(), default=0)


class SettlementMachine(RuleBasedStateMachine):
    index_class: type[PrefixIndex]

    @initialize(
        groups=st.sampled_from(GROUPS),
        depth=st.integers(1, 2),
        spare=st.integers(0, 12),
        rules=st.builds(
            Rules,
            long_prefill_tokens=st.sampled_from([0, 0, 5]),
            watermark_blocks=st.integers(0, 1),
            whole_prompt=st.booleans(),
            shares_in_flight=st.sampled_from([True, True, False]),
        ),
    )
    def build(self, groups: tuple[LayerGroup, ...], depth: int, spare: int, rules: Rules) -> None:
        self.groups, self.depth = groups, depth
        self.blocks = entries(MOST) * len(groups) + spare
        self.handshake = toy_handshake(blocks=self.blocks + 1, block_size=SIZE, groups=groups, max_model_len=MOST)
        index = self.index_class(groups, SIZE)
        self.tables = BlockTables(
            blocks=self.blocks + 1, block_size=SIZE, groups=groups, rows=ROWS, max_tokens=MOST, index=index
        )
        self.memory = Memory(self.tables, rules)
        self.late_row, self.standing = -1, 0
        self.runner = self.new_runner()
        self.requests: list[Request] = []
        self.waiting: list[Request] = []
        self.running: dict[int, Request] = {}
        self.parked: set[int] = set()
        self.in_flight: list[InFlight] = []
        self.released: list[Released] = []
        self.removed: list[int] = []
        self.filled: list[tuple[int, int, list[int]]] = []
        self.number, self.epoch = 0, 1
        self.seen: list[list[int]] = [[]]

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        more=st.lists(st.integers(1, 2), min_size=1, max_size=9),
        count=st.integers(1, 9),
        choices=st.sampled_from([1, 1, 1, 2]),
        feeds=st.sampled_from([True, True, True, False]),
        reads=st.sampled_from([True, True, True, False]),
    )
    def come(self, data: st.DataObject, more: list[int], count: int, choices: int, feeds: bool, reads: bool) -> None:
        begun = data.draw(st.sampled_from(self.seen))
        prompt = [*begun[: data.draw(st.integers(0, len(begun)))], *more][: MOST - 1]
        count = min(count, MOST - len(prompt))
        answer = toy_tokens(prompt, count, VOCAB, windows=[group.window for group in self.groups])
        self.seen.append([*prompt, *answer])
        for _ in range(choices):
            request = Request(len(self.requests), prompt, answer, feeds, reads, list(prompt))
            self.requests.append(request)
            self.waiting.append(request)

    @precondition(lambda self: len(self.in_flight) < self.depth)
    @rule(budget=st.integers(1, 20), drafts=st.sampled_from([0, 0, 1, 3, 6]))
    def step(self, budget: int, drafts: int) -> None:
        self.settle(budget, self.candidates(), drafts=drafts)

    @precondition(lambda self: self.in_flight)
    @rule(late_row=st.integers(-ROWS, ROWS - 1), standing=st.integers(0, 6))
    def back(self, late_row: int = -1, standing: int = 6) -> None:
        """The oldest step in flight returns, with the right tokens; the late row computes its last one again.

        Of a row's drafts so many are right as `standing` says.
        """
        one = self.in_flight.pop(0)
        self.late_row, self.standing = late_row, standing
        done = self.runner.execute(one.step)
        got = dict(zip(done.rows.tolist(), done.counts.tolist(), strict=True))
        for row, (request, life, end) in one.served.items():
            if request.row != row or request.life != life:
                continue
            behind = 1 + one.drafts[row] - got.get(row, 0) if row in one.drafts else 0
            request.settled = end - behind
            request.computed -= behind
            request.known -= behind
            for other in self.in_flight:
                if other.served.get(row, (None, 0, 0))[:2] == (request, life):
                    other.served[row] = (request, life, other.served[row][2] - behind)
        tokens = iter(done.tokens.tolist())
        for row, count in got.items():
            request, life, _ = one.served[row]
            own = [next(tokens) for _ in range(count)]
            if request.row == row and request.life == life:
                request.tokens += own
                assert request.tokens == [*request.prompt, *request.answer][: len(request.tokens)]
        for request in list(self.running.values()):
            while request.feeds and (request.filled + 1) * SIZE <= request.settled:
                tokens = request.tokens[request.filled * SIZE : (request.filled + 1) * SIZE]
                self.filled.append((request.row, request.filled, tokens))
                request.filled += 1
            if len(request.tokens) > request.last:
                self.leave(request)

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from([*self.waiting, *self.running.values()])))

    @precondition(lambda self: len(self.in_flight) < self.depth and len(self.running) < ROWS and self.candidates())
    @rule(data=st.data(), budget=st.integers(1, 20))
    def offer_one(self, data: st.DataObject, budget: int) -> None:
        """A candidate that is not let in has changed nothing."""
        candidate = data.draw(st.sampled_from(self.candidates()))
        self.settle(budget, (), wants=False)
        before = self.everything()
        granted = self.settle(budget, (candidate,), wants=False)
        assert granted.admitted or self.everything() == before

    @precondition(lambda self: len(self.tables.index) > 3)
    @rule()
    def forget_prefixes(self) -> None:
        self.memory.forget_prefixes()
        assert len(self.tables.index) == 0

    def new_runner(self) -> ToyRunner:
        return ToyRunner(self.handshake, is_late=lambda number, row: row == self.late_row, guess=self.guess)

    def guess(self, number: int, row: int, known: Sequence[int], most: int) -> list[int]:
        right = toy_tokens(known, most, VOCAB, windows=[group.window for group in self.groups])
        return [token if at < self.standing else (token + 1) % VOCAB for at, token in enumerate(right)]

    @rule(forget=st.booleans())
    def rewind(self, forget: bool) -> None:
        """The steps in flight are lost, with the device when `forget`."""
        for request in list(self.running.values()):
            self.send_back(request)
        self.in_flight.clear()
        self.released.clear()
        self.removed.clear()
        self.filled.clear()
        self.parked.clear()
        self.epoch += 1
        if forget:
            self.runner = self.new_runner()
        self.memory.rewind(forget=forget)
        self.check_ledger()

    def teardown(self) -> None:
        """Everybody who is left finishes, however little room there is."""
        if not hasattr(self, "memory"):
            return
        for _ in range(1000 * len(self.requests)):
            if not self.waiting and not self.running:
                break
            is_full = len(self.in_flight) == self.depth
            granted = None if is_full else self.settle(8, self.candidates())
            if self.in_flight and (granted is None or not len(granted.rows)):
                self.back()
            elif granted is not None:
                assert len(granted.rows) or granted.woken, "nobody can go on"
        assert not self.waiting
        assert not self.running
        while self.in_flight:
            self.back()
        self.settle(8, ())
        assert self.tables.ledger().referenced == 0
        assert len(self.memory.sharing) == 0

    # --- a scheduler in its simplest form -----------------------------------------------------------------------------

    def candidates(self) -> tuple[Candidate, ...]:
        able = [request for request in self.waiting if request.number not in self.parked]
        return tuple(map(self.candidate, sorted(able, key=lambda request: request.number)))

    def candidate(self, request: Request) -> Candidate:
        data = array("i", request.tokens).tobytes()
        names = extend_chain(root_name(ROOT), data, SIZE) if request.feeds else ()
        siblings = [
            other.row
            for other in self.running.values()
            if other.prompt == request.prompt and other.computed >= len(request.prompt) - 1
        ]
        may_fork = len(request.tokens) == len(request.prompt) > 1 and request.feeds and siblings
        return Candidate(
            RequestId(request.number),
            min(len(request.tokens), request.last),
            Prefix(ROOT, data, names),
            fork_row=siblings[0] if may_fork else -1,
            read_cache=request.reads and request.feeds,
            feed_cache=request.feeds,
        )

    def settle(self, budget: int, candidates: Sequence[Candidate], *, wants: bool = True, drafts: int = 0) -> Granted:
        """One settlement, checked, and the step that comes of it."""
        self.number += 1
        order = sorted(self.running, key=lambda row: self.running[row].number)
        computed, wanted = np.zeros(ROWS, dtype=np.int32), np.zeros(ROWS, dtype=np.int32)
        most = self.memory.rules.long_prefill_tokens or MOST
        for row, request in self.running.items():
            computed[row] = request.computed
            wanted[row] = min(min(request.known, request.last) - request.computed, most) if wants else 0
        tried = np.zeros(ROWS, dtype=np.int32)
        for row, request in self.running.items():
            if wanted[row] == 1 and request.known - request.computed == 1:
                tried[row] = min(drafts, request.last - request.known)
        if int(wanted.sum() + tried.sum()) > budget:
            tried[:] = 0
        wanted += tried
        reserve = Reserve(
            number=self.number,
            returned=(self.in_flight[0].step.number if self.in_flight else self.number) - 1,
            order=ints(order),
            computed=computed,
            wants=wanted,
            tokens=int(wanted.sum()),
            victims=ints(order[::-1]),
            candidates=tuple(candidates),
            budget_tokens=budget,
            free_rows=tuple(row for row in range(ROWS) if row not in self.running),
            released=tuple(self.released),
            filled=ints([(row, index) for row, index, _ in self.filled]).reshape(-1, 2),
            filled_tokens=ints([tokens for _, _, tokens in self.filled]).reshape(-1, SIZE),
            drafts=tried if tried.any() else ints([]),
            most_behind=self.most_behind,
        )
        self.released.clear()
        self.filled.clear()
        granted, has_unnamed = settle(self.memory, reserve)
        counts = dict(zip(granted.rows.tolist(), granted.counts.tolist(), strict=True))
        granted_drafts = {row for row in range(ROWS) if tried[row] and counts.get(row) == wanted[row]}
        assert granted_drafts in (set(), set(np.flatnonzero(tried).tolist()))
        assert not (granted_drafts and granted.victims)
        self.apply(granted, order)
        assert int(granted.counts.sum()) <= budget
        assert granted.free_blocks == self.tables.pool.free
        self.check_ledger()
        if has_unnamed:
            self.memory.publish(reserve)
            self.check_ledger()
        return granted

    def apply(self, granted: Granted, order: list[int]) -> None:
        if granted.victims:
            assert order[0] not in granted.victims  # the oldest runs on
            assert not granted.admitted
        for row in granted.victims:
            self.removed.append(row)
            self.send_back(self.running[row])
        self.parked |= set(granted.parked)
        assert set(granted.woken) <= self.parked
        self.parked -= set(granted.woken)
        for row, group, index, block in granted.blocks.tolist():
            self.running[row].tables[group][index] = block
        added = tuple(map(self.let_in, granted.admitted))
        if not len(granted.rows):
            return
        self.check_writes(granted)
        served, looked_at, drafts = {}, {}, {}
        for row, count in zip(granted.rows.tolist(), granted.counts.tolist(), strict=True):
            request = self.running[row]
            looked_at[request.number, request.life] = request.blocks(self.groups, self.lowest(request))
            request.computed += count
            if request.computed >= request.known:
                drafts[row] = request.computed - request.known
                request.known = request.computed + 1
            served[row] = (request, request.life, request.computed)
        step = Step(
            number=granted.number,
            epoch=self.epoch,
            rows=granted.rows,
            counts=granted.counts,
            removed=ints(self.removed),
            added=added,
            blocks=granted.blocks,
            copies=granted.copies,
        )
        self.removed.clear()
        copied = {source: slots for source, _, slots in granted.copies.tolist()}
        self.in_flight.append(InFlight(step, served, drafts, looked_at, copied))

    @property
    def most_behind(self) -> int:
        return sum(one.most_behind for one in self.in_flight)

    def lowest(self, request: Request) -> int:
        """Where its next step may turn out to begin."""
        own = (request, request.life)
        flying = [one for one in self.in_flight if one.served.get(request.row, (None, 0, 0))[:2] == own]
        return request.computed - sum(1 + one.drafts[request.row] for one in flying if request.row in one.drafts)

    def let_in(self, admission: Admission) -> NewRow:
        request = self.requests[admission.request]
        self.waiting.remove(request)
        self.running[admission.row] = request
        request.row, request.life = admission.row, request.life + 1
        request.known = len(request.tokens)
        request.computed = request.settled = admission.computed
        request.filled = admission.computed // SIZE
        request.tables = [dict(enumerate(np.frombuffer(table, np.int32).tolist())) for table in admission.tables]
        assert admission.computed < min(request.known, request.last) + (request.last == 0)
        return NewRow(
            row=admission.row,
            request=admission.request,
            tokens=array("i", request.tokens).tobytes(),
            prompt_tokens=len(request.prompt),
            computed=admission.computed,
            tables=admission.tables,
            sampling=SamplingParams(),
            seed=0,
        )

    def send_back(self, request: Request) -> None:
        del self.running[request.row]
        request.row = -1
        self.waiting.append(request)

    def leave(self, request: Request) -> None:
        request.is_over = True
        if request.row < 0:
            self.waiting.remove(request)
            return
        tail = request.tokens[request.filled * SIZE : request.settled] if request.feeds else []
        self.released.append(Released(request.row, array("i", tail).tobytes()))
        self.removed.append(request.row)
        del self.running[request.row]
        request.row = -1

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def check_writes(self, granted: Granted) -> None:
        """A row writes only where nobody else looks, now or in a step in flight, and nothing that can be found."""
        written: dict[int, int] = {}
        first_slots: dict[int, int] = {}
        for row, count in zip(granted.rows.tolist(), granted.counts.tolist(), strict=True):
            request = self.running[row]
            computed = self.lowest(request)
            begin, end = computed // SIZE, entries(request.computed + count)
            assert count > 0
            for spec, table in zip(self.groups, request.tables, strict=True):
                assert all(table.get(index) for index in range(spec.first_needed(computed, SIZE), end))
                for index in range(begin, end):
                    assert table[index] not in written
                    written[table[index]] = row
                    first_slots[table[index]] = max(0, computed - index * SIZE)
                    assert not self.tables.index.holds(table[index])
        for row, request in self.running.items():
            own = {block for block, writer in written.items() if writer == row}
            assert (request.blocks(self.groups, 0) & written.keys()) <= own
            for one in self.in_flight:
                assert all(first_slots[block] >= one.copied.get(block, 0) for block in own)
                for life, blocks in one.looked_at.items():
                    assert life == (request.number, request.life) or not own & blocks
        for source, destination, slots in granted.copies.tolist():
            assert slots <= first_slots.get(source, SIZE)  # a fork's sibling goes on behind what is copied
            assert destination in written
            assert 0 < slots < SIZE

    def check_ledger(self) -> None:
        ledger = self.tables.ledger()
        assert ledger.blank + ledger.cached + ledger.referenced == ledger.total == self.blocks
        held = {b for request in self.running.values() for table in request.tables for b in table.values() if b}
        assert len(held) <= ledger.referenced <= len(held) + ledger.leaving
        assert all(self.tables.pool.references(block) for block in held)
        assert ledger.cached <= len(self.tables.index)

    def everything(self) -> tuple[object, ...]:
        tables, blocks = self.tables, range(1, self.blocks + 1)
        return (
            tables.ledger(),
            [(tables.pool.references(block), tables.index.holds(block)) for block in blocks],
            tables.tables.tolist(),
            tables.held.tolist(),
            [tables.index.match(self.candidate(request).prefix, MOST).blocks for request in self.requests],
        )


class ChainMachine(SettlementMachine):
    index_class = PrefixChain


class TreeMachine(SettlementMachine):
    index_class = PrefixTree


TestSettlementOverTheChain = ChainMachine.TestCase
TestSettlementOverTheTree = TreeMachine.TestCase
TestSettlementOverTheChain.settings = TestSettlementOverTheTree.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
