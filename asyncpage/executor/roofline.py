"""What a step must move and compute at least, and what this machine can: the two sides of its roofline.

`asyncpage bench roofline` puts them beside what steps took (`step_clock`). The work is that of the operators that
`step_graph` lists.

INVARIANT: work is counted once, however often a step does it: weights are read once for all rows, a token's keys and
values once for all tokens of its prompt, and logits are computed for the last token of a prompt alone.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from asyncpage.executor.step_graph import StepGraph
from asyncpage.models.operators import Operator

_BUFFER_BYTES = 256 << 20  # greater than any cache
_READS, _PRODUCTS = 9, 5
_ROWS, _COLUMNS = 1024, 2048  # of the product that is timed: from a few hundred rows on it is as fast as it gets
_HEAD = "head"  # of an operator's key: what only rows that sample go through


@dataclass(frozen=True, slots=True)
class Machine:
    """`bytes_per_s`: read from memory by all threads. `flops_per_s`: of a product of float32 matrices, torch's."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """`bytes`: weights and keys and values that are read, and those that are written. `flops`: of products."""

    bytes: int
    flops: int

    def least_s(self, machine: Machine) -> float:
        """The time that it takes at least, where reading and computing go on at once."""
        return max(self.bytes / machine.bytes_per_s, self.flops / machine.flops_per_s)


def measure_machine(threads: int) -> Machine:
    """Takes about a second. Of several tries the best counts, as every other one was disturbed."""
    return Machine(_read_rate(threads), _product_rate(threads))


def decode_work(graph: StepGraph, rows: int) -> Work:
    """Of a step of one token for each of so many rows, at the graph's context."""
    weights = _sum(graph, lambda one: one.read_bytes)
    kv = _sum(graph, lambda one: one.kv_read_bytes + one.kv_written_bytes)
    return Work(weights + rows * kv, rows * _sum(graph, lambda one: one.flops))


def prompt_work(graph: StepGraph, tokens: int) -> Work:
    """Of a step that computes a prompt of so many tokens; the graph is to be that of half the context."""
    weights = _sum(graph, lambda one: one.read_bytes)
    kv = 2 * tokens * _sum(graph, lambda one: one.kv_written_bytes)
    head = _sum(graph, lambda one: one.flops if _is_head(one) else 0)
    return Work(weights + kv, tokens * (_sum(graph, lambda one: one.flops) - head) + head)


def _is_head(operator: Operator) -> bool:
    return operator.key.split(".")[0] == _HEAD


def _sum(graph: StepGraph, amount: Callable[[Operator], int]) -> int:
    return sum(block.times * amount(operator) for block in graph.blocks for operator in block.operators)


def _read_rate(threads: int) -> float:
    """Bytes a second. The C library looks for a byte that is not there, which waits for memory and nothing else."""
    library = ctypes.CDLL(None)
    library.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    library.memchr.restype = ctypes.c_void_p
    with mmap.mmap(-1, _BUFFER_BYTES) as buffer:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            buffer.madvise(mmap.MADV_HUGEPAGE)
        view = (ctypes.c_char * _BUFFER_BYTES).from_buffer(buffer)
        begin, share = ctypes.addressof(view), _BUFFER_BYTES // threads
        ctypes.memset(begin, 0, _BUFFER_BYTES)
        rates = []
        for _ in range(_READS):
            readers = [
                threading.Thread(target=library.memchr, args=(begin + number * share, 1, share))
                for number in range(threads)
            ]
            started = time.perf_counter()
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            rates.append(threads * share / (time.perf_counter() - started))
        del view
    return max(rates)


def _product_rate(threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.ones(_ROWS, _COLUMNS), torch.ones(_COLUMNS, _COLUMNS)
        out = torch.empty(_ROWS, _COLUMNS)
        times = []
        for _ in range(_PRODUCTS):
            started = time.perf_counter()
            torch.mm(left, right, out=out)
            times.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return 2.0 * _ROWS * _COLUMNS * _COLUMNS / min(times)
