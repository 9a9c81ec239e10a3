"""Measures where the time of a step goes, operator by operator, on a runner that it loads for this alone.

`asyncpage doctor` asks for it with the graph that it shows (`step_graph`). The runner is the one that serves, loaded as
for serving; probes are put around its parts from outside, and cost about a microsecond a part. `asyncpage bench
roofline` asks for whole steps, around whose parts nothing is put.

INVARIANT: the times of all operators and of the rest add up to the time of the steps.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ModelError
from asyncpage.executor.runner import load_runner
from asyncpage.executor.step_graph import StepGraph
from asyncpage.messages import EMPTY, EMPTY_TRIPLES, Int32, Load, NewRow, Pooling, RequestId, Step
from asyncpage.messages.executor import Handshake
from asyncpage.models.probe import Probe, Prober

PROMPT_TOKENS = 256
"""Of the prompt whose prefill is measured, and the most that a step computes while a row reaches its context."""

_WARM_STEPS, _STEPS = 2, 8
_PROMPTS = 2  # the first warms up

Told = Callable[[int, int], None]
"""told(done, total): how far it is, in steps."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step of `rows` rows with `tokens` tokens of each. `us`: by the key of a listed operator, in all its layers.

    `rest_us`: of what is no operator, such as packing rows and planning attention.
    """

    rows: int
    tokens: int
    total_us: float
    us: Mapping[str, float]
    rest_us: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """`decode`: of one token each at the graph's context; None for an encoder."""

    prefill: StepTime
    decode: StepTime | None


class _Runner(Protocol):
    handshake: Handshake

    def execute(self, step: Step) -> Any: ...

    def watch(self, put: Callable[[str, Any], Any]) -> None: ...

    def close(self) -> None: ...


class StepClock:
    """See `probe.Watch`: each key's own time, without that of the parts that it calls.

    `wait`: ends when the device has done what it was told, None where it is done when the call returns.
    """

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self._wait = wait
        self._stack: list[list[Any]] = []  # of key, when it began, nanoseconds that it called others for
        self.own_ns: Counter[str] = Counter()

    def enter(self, key: str, path: str) -> None:
        if key.startswith("."):
            key = f"{self._stack[-1][0]}{key}" if self._stack else key[1:]
        if self._wait is not None:
            self._wait()
        self._stack.append([key, time.perf_counter_ns(), 0])

    def leave(self, args: Sequence[Any], result: Any) -> None:
        if self._wait is not None:
            self._wait()
        now = time.perf_counter_ns()
        key, began, others = self._stack.pop()
        self.own_ns[key] += now - began - others
        if self._stack:
            self._stack[-1][2] += now - began


def measure(graph: StepGraph, settings: Mapping[str, Any], rows: int, told: Told) -> StepTimes:
    """Load the model, run a prompt, and then `rows` rows a few steps at the graph's context.

    Errors: as `load_runner`; `UsageError` above all, where the machine has too little memory for it.
    """
    prompt = min(PROMPT_TOKENS, graph.max_model_len)
    before = _tokens_before(graph)
    longest = graph.context if graph.is_encoder else max(prompt, before + _WARM_STEPS + _STEPS) + 1
    with _loaded(graph, settings, rows, prompt, longest) as runner:
        bench = _Bench(graph, runner, settings["block_size"], told)
        bench.watch()
        if graph.is_encoder:
            return StepTimes(bench.prompts(rows, graph.context, _PROMPTS), None)
        total = _PROMPTS + _steps_of(rows, before, prompt)
        prefill = bench.prompts(1, prompt, total)
        return StepTimes(prefill, bench.decode(rows, before, prompt, total))


def measure_whole(
    graph: StepGraph, settings: Mapping[str, Any], batches: Sequence[int], prompt: int, told: Told
) -> tuple[StepTime, ...]:
    """A step of a prompt of so many tokens, then the middle one of several of each batch at the graph's context.

    They are timed as they are served, and nothing is told of operators. Errors: as `measure`; not for an encoder.
    """
    before = _tokens_before(graph)
    longest = max(prompt, before + _WARM_STEPS + _STEPS) + 1
    with _loaded(graph, settings, max(batches), prompt, longest) as runner:
        bench = _Bench(graph, runner, settings["block_size"], told)
        total = _PROMPTS + sum(_steps_of(rows, before, prompt) for rows in batches)
        prefill = bench.prompts(1, prompt, total)
        return (prefill, *(bench.decode(rows, before, prompt, total) for rows in batches))


def _tokens_before(graph: StepGraph) -> int:
    """Of a row whose steps are measured, so that the middle one of them has the graph's context."""
    answer = _WARM_STEPS + _STEPS
    return max(1, min(graph.context - answer // 2, graph.max_model_len - answer - 1))


def _steps_of(rows: int, before: int, chunk: int) -> int:
    """How many steps `_Bench.decode` takes."""
    return -(-before // chunk) + (rows > 1) + _WARM_STEPS + _STEPS


@contextmanager
def _loaded(graph: StepGraph, settings: Mapping[str, Any], rows: int, prompt: int, longest: int) -> Iterator[_Runner]:
    blocks = (rows + 1) * graph.groups * -(-longest // settings["block_size"])
    changes: dict[str, Any] = {
        "max_model_len": min(longest, graph.max_model_len),
        "max_num_seqs": rows + 1,
        "max_num_batched_tokens": max(prompt, rows),
        "kv_cache_bytes": None,
        "num_kv_blocks": None if graph.is_encoder else 1 + blocks,
    }
    runner = cast(_Runner, load_runner(Load({**settings, **changes})))
    try:
        yield runner
    finally:
        runner.close()


class _Bench:
    """Brings rows to the runner and steps it."""

    def __init__(self, graph: StepGraph, runner: _Runner, block_size: int, told: Told) -> None:
        self._graph, self._runner, self._block_size, self._told = graph, runner, block_size, told
        self._clock = StepClock(
            torch.cuda.synchronize if runner.handshake.device.startswith(("cuda", "rocm")) else None
        )
        self._random = np.random.default_rng(0)
        self._done = 0

    def watch(self) -> None:
        """Tell the operators' times apart from here on."""
        self._runner.watch(self._put)

    def prompts(self, rows: int, tokens: int, total: int) -> StepTime:
        """A step that computes whole prompts, after one to warm up."""
        for _ in range(_PROMPTS - 1):
            self._step(rows, tokens, total, added=self._rows(rows, tokens))
            self._step(0, 0, total, removed=rows)
        self._clock.own_ns.clear()
        took = self._step(rows, tokens, total, added=self._rows(rows, tokens))
        spent = self._time(rows, tokens, [took])
        self._step(0, 0, total, removed=rows)
        return spent

    def decode(self, rows: int, before: int, chunk: int, total: int) -> StepTime:
        """Steps of one token a row, behind `before` tokens: one row computes them in chunks, the others copy its KV.

        Their own tokens are others, so that not all of them go the same way from there.
        """
        first, *others = self._rows(rows, before)
        for at in range(0, before, chunk):
            self._step(1, min(chunk, before - at), total, added=() if at else (first,))
        if others:
            late = tuple(replace(row, computed=before - 1) for row in others)
            self._step(rows, 1, total, added=late, copies=self._copies(first, others, before))
        for _ in range(_WARM_STEPS):
            self._step(rows, 1, total)
        self._clock.own_ns.clear()
        spent = self._time(rows, 1, [self._step(rows, 1, total) for _ in range(_STEPS)])
        self._step(0, 0, total, removed=rows)
        return spent

    def _put(self, name: str, part: Any) -> Probe:
        if name == "model":
            return Prober(self._clock).probe(part)
        return Probe("" if name == "attention" else name, part, self._clock)

    def _rows(self, rows: int, tokens: int) -> tuple[NewRow, ...]:
        return tuple(self._row(number, tokens) for number in range(rows))

    def _row(self, number: int, tokens: int) -> NewRow:
        graph, longest = self._graph, self._runner.handshake.max_model_len
        per_group = -(-longest // self._block_size)
        groups = len(self._runner.handshake.groups)
        tables = [
            np.arange(per_group, dtype=np.int32) + 1 + (number * groups + group) * per_group for group in range(groups)
        ]
        row = NewRow(
            row=number,
            request=RequestId(self._done * 1000 + number + 1),
            tokens=self._random.integers(0, graph.vocab_size, tokens, dtype=np.int32).tobytes(),
            prompt_tokens=tokens,
            computed=0,
            tables=tuple(table.tobytes() for table in tables),
            sampling=SamplingParams(temperature=0.0),
            seed=0,
        )
        return replace(row, pooling=Pooling("mean")) if graph.is_encoder else row

    def _copies(self, first: NewRow, others: Sequence[NewRow], tokens: int) -> Int32:
        """The first row's blocks of so many tokens into those of the others."""
        begins = np.arange(0, tokens, self._block_size)
        counts = np.minimum(self._block_size, tokens - begins)
        pairs = [pair for row in others for pair in zip(first.tables, row.tables, strict=True)]
        blocks = [[np.frombuffer(table, dtype="<i4")[: len(begins)] for table in pair] for pair in pairs]
        return np.concatenate([np.stack((*pair, counts), axis=1) for pair in blocks]).astype(np.int32)

    def _step(
        self,
        rows: int,
        tokens: int,
        total: int,
        *,
        added: tuple[NewRow, ...] = (),
        removed: int = 0,
        copies: Int32 = EMPTY_TRIPLES,
    ) -> int:
        """Nanoseconds. A step that only removes rows is not counted as one."""
        columns: Int32 = np.arange(rows, dtype=np.int32)
        gone: Int32 = np.arange(removed, dtype=np.int32) if removed else EMPTY
        counts = np.full(rows, tokens, dtype=np.int32)
        step = Step(self._done + 1, 1, columns, counts, gone, added, copies=copies)
        began = time.perf_counter_ns()
        failed = self._runner.execute(step).failed
        took = time.perf_counter_ns() - began
        if failed:
            raise ModelError(f"the step that was to be measured failed: {failed[0][1]}")
        if rows:
            self._done += 1
            self._told(self._done, total)
        return took

    def _time(self, rows: int, tokens: int, took_ns: Sequence[int]) -> StepTime:
        """What the clock has, a step on average; of steps that were not watched the middle one."""
        listed = {operator.key for block in self._graph.blocks for operator in block.operators}
        spent: Counter[str] = Counter()
        for key, own in self._clock.own_ns.items():
            spent[self._graph.listed_key(key)] += own
        us = {key: spent[key] / len(took_ns) / 1000 for key in listed}
        total = (statistics.mean(took_ns) if self._clock.own_ns else statistics.median(took_ns)) / 1000
        return StepTime(rows, tokens, total, us, total - sum(us.values()))
