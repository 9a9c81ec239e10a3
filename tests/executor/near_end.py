"""The near end of an executor in small, for tests of a runner: requests, and who gives them rows, blocks and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.messages import Constraint, NewRow, PromptLogprobs, RequestId, Step, StepDone

BLOCK_SIZE = 4
GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Request:
    """`most`: tokens that it may put out; none of its steps asks for drafts beyond them."""

    prompt: list[int]
    sampling: SamplingParams
    seed: int
    output: list[int] = field(default_factory=list)
    row: int = -1
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    columns: list[tuple[float, int]] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failed: str | None = None
    constraint: Constraint | None = None
    ends: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    most: int = 1 << 20
    drafted: int = 0

    @property
    def known(self) -> list[int]:
        return self.prompt + self.output

    @property
    def is_over(self) -> bool:
        return self.failed is not None or len(self.output) >= self.most or bool({*self.output[-1:]} & {*self.ends})


def request(prompt: list[int], sampling: SamplingParams = GREEDY, seed: int = 42, **more: Any) -> Request:
    return Request(prompt, sampling, seed, **more)


class Scheduler:
    """The near end in small: gives rows and scattered blocks, sends differences, keeps what comes back."""

    def __init__(self, executor: ModelRunner, seed: int = 0) -> None:
        self.executor = executor
        self.free = np.random.default_rng(seed).permutation(np.arange(1, executor.handshake.blocks)).tolist()
        self.living: list[Request] = []
        self.number = 0
        self.epoch = 1
        self.fresh: list[Request] = []
        self.removed: list[int] = []
        self.copies: list[tuple[int, int, int]] = []
        self.saves: list[tuple[int, int]] = []
        self.loads: list[tuple[int, int]] = []

    def start(self, request: Request, row: int, *, computed: int = 0, blocks: Iterable[int] = ()) -> Request:
        request.row, request.computed, request.blocks = row, computed, list(blocks)
        self.living.append(request)
        self.fresh.append(request)
        return request

    def stop(self, request: Request, *, give_back: bool = True) -> None:
        self.living.remove(request)
        self.removed.append(request.row)
        if give_back:
            self.free += request.blocks

    def step(
        self, counts: Mapping[int, int] | None = None, budget: int = 48, chunk: int = 48, drafts: int = 0
    ) -> StepDone:
        """Give each living request its next tokens: `counts` by row, or what the budget leaves in order.

        One that catches up may try `drafts`.
        """
        rows, granted, placed = [], [], []
        asked: dict[int, int] = {}
        for request in self.living:
            want = len(request.known) - request.computed
            count = counts.get(request.row, 0) if counts is not None else min(want, chunk, budget)
            if not count:
                continue
            if count == want:
                asked[request.row] = max(0, min(drafts, request.most - len(request.output) - 1, budget - count))
                count += asked[request.row]
            budget -= count
            while len(request.blocks) * BLOCK_SIZE < request.computed + count:
                block = self.free.pop()
                if request not in self.fresh:
                    placed.append((request.row, 0, len(request.blocks), block))
                request.blocks.append(block)
            rows.append(request.row)
            granted.append(count)
        self.number += 1
        done = self.executor.execute(
            Step(
                self.number,
                self.epoch,
                np.array(rows, dtype=np.int32),
                np.array(granted, dtype=np.int32),
                np.array(self.removed, dtype=np.int32),
                tuple(self._new_row(request) for request in self.fresh),
                np.array(placed, dtype=np.int32).reshape(-1, 4),
                np.array(self.copies, dtype=np.int32).reshape(-1, 3),
                np.array(self.saves, dtype=np.int32).reshape(-1, 2),
                np.array(self.loads, dtype=np.int32).reshape(-1, 2),
            )
        )
        self.fresh, self.removed, self.copies, self.saves, self.loads = [], [], [], [], []
        self._take(done, {row: count - asked.get(row, 0) for row, count in zip(rows, granted, strict=True)}, asked)
        return done

    def run(self, outputs: int, **how: Any) -> None:
        """Step until every living request has put out this many tokens, or is over."""
        while self.living:
            for request in list(self.living):
                if len(request.output) >= outputs or request.is_over:
                    self.stop(request)
            if self.living:
                self.step(**how)

    def _new_row(self, request: Request) -> NewRow:
        return NewRow(
            request.row,
            RequestId(request.row),
            np.array(request.known, dtype=np.int32).tobytes(),
            len(request.prompt),
            request.computed,
            (np.array(request.blocks, dtype=np.int32).tobytes(),),
            request.sampling,
            request.seed,
            end_token_ids=request.ends,
            bad_word_ids=request.bad_words,
            constraint=request.constraint,
        )

    def _take(self, done: StepDone, granted: Mapping[int, int], asked: Mapping[int, int]) -> None:
        """Take an answer; a row that sampled has all but its last token computed, however many drafts stood."""
        by_row = {request.row: request for request in self.living}
        assert (done.number, done.epoch) == (self.number, self.epoch)
        assert len(done.drafted) in (0, len(done.rows))
        drafted = done.drafted.tolist() or [0] * len(done.rows)
        for row, count in granted.items():
            by_row[row].computed += count
        at = 0
        for row, count, tried in zip(done.rows.tolist(), done.counts.tolist(), drafted, strict=True):
            request = by_row[row]
            assert request.computed == len(request.known)
            assert 1 <= count <= tried + 1 <= asked.get(row, 0) + 1
            request.drafted += tried
            request.output += done.tokens[at : at + count].tolist()
            request.computed = len(request.known) - 1
            if done.logprobs is not None:
                numbers = done.logprobs.token_logprobs[at : at + count].tolist()
                request.columns += zip(numbers, done.logprobs.ranks[at : at + count].tolist(), strict=True)
            at += count
        assert at == len(done.tokens)
        for row in done.late:
            by_row[row].computed -= 1
        for row, reason in done.failed:
            by_row[row].failed = reason
        for entry in done.prompt_logprobs:
            by_row[entry.row].prompt_logprobs.append(entry)


def fork_and_load(scheduler: Scheduler, first: Request, sampling: SamplingParams) -> tuple[Request, Request]:
    """Two requests beside `first`, which has computed its prompt of 22: one shares its blocks but for a copy of the
    last, and of one the first 16 tokens were saved to the arena and come back from there."""
    target = scheduler.free.pop()
    scheduler.copies = [(first.blocks[5], target, 1)]
    shared = [*first.blocks[:5], target]
    fork = scheduler.start(request(first.prompt, sampling), 1, computed=21, blocks=shared)
    scheduler.saves = [(block, slot) for slot, block in enumerate(first.blocks[:4])]
    scheduler.step()
    loaded = [scheduler.free.pop() for _ in range(4)]
    scheduler.loads = list(enumerate(loaded))
    back = scheduler.start(request([*first.prompt[:20], 1, 2, 3]), 2, computed=16, blocks=loaded)
    scheduler.step()
    return fork, back
