"""A list of a decoder's operators for native code, run in one call without the interpreter's lock (ctypes).

`models.stack` makes the list. Sources: `cpu/stack.cpp`.

INVARIANT: a row's numbers are made of that row alone, bit for bit, in everything but attention, which is as its backend
says.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from asyncpage.kernels.loaded import Library

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Operation(IntEnum):
    """What an instruction does to each row; in the order of stack.cpp.

    `NORM`: root-mean-square norm of `width` items by `weight`. `PRODUCT`: with a table of `kind`, `columns` and
    `outputs`, that `adds` or not. `BIAS`: adds `weight` to `width` items of `to`. `HEAD_NORM`: `NORM` of each of
    `heads`, each by a row of `weight`. `TURN`: in `to`, the first `width` of each of `heads` of `outputs` items, by the
    angles numbered `kind`. `ATTEND`: see `AttentionCalls`. `GATE`: activation `kind` of `width` items times the next
    `width`. `ADD`: adds `width` items of `from` to `to`.
    """

    NORM = 0
    PRODUCT = 1
    BIAS = 2
    HEAD_NORM = 3
    TURN = 4
    ATTEND = 5
    GATE = 6
    ADD = 7


class Activation(IntEnum):
    """In the order of stack.cpp."""

    SILU = 0
    GELU_TANH = 1
    RELU = 2


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCalls:
    """A layer's attention as C functions: what an attention backend may give, so that a list can hold it.

    `write(group, step, layer, k, k_stride, v, v_stride)` puts a step's keys and values into the layer's cache, and
    `attend(group, step, layer, q, q_stride, out, out_stride, lse)` attends, `lse` being null; both return nothing.
    Numbers are float32, strides count them from token to token, heads lie behind one another. `group`, `step` and
    `layer` are the backend's own, and stay where they are whatever is planned; `held` keeps them there.
    """

    write: int
    attend: int
    group: int
    step: int
    layer: int
    held: Any


class Instruction(ctypes.Structure):
    """One operator, from columns `source_at` on of buffer `source` to columns `target_at` on of buffer `target`."""

    _fields_ = [
        *((name, _INT) for name in ("operation", "source", "source_at", "target", "target_at")),
        *((name, _INT) for name in ("kind", "columns", "outputs", "adds", "heads", "width")),
        ("weight", _POINTER),
        ("eps", ctypes.c_double),
        *((name, _POINTER) for name in ("write", "attend", "group", "step", "layer")),
        ("k_at", _INT),
        ("v_at", _INT),
    ]


class Buffer(ctypes.Structure):
    """Float32 rows, `stride` numbers from one to the next."""

    _fields_ = [("at", _POINTER), ("stride", _INT)]


class PositionAngles(ctypes.Structure):
    """Cosines and signed sines of positions from 0 on, float32 [positions, width]."""

    _fields_ = [("cosines", _POINTER), ("sines", _POINTER)]


class _Run(ctypes.Structure):
    _fields_ = [
        ("instructions", _POINTER),
        *((name, _INT) for name in ("count", "rows", "threads")),
        ("buffers", _POINTER),
        ("angles", _POINTER),
        ("positions", _POINTER),
    ]


class NativeStack:
    """Runs lists over `buffers` and `angles`, which the caller points at memory before each call."""

    def __init__(self, library: Library, buffers: int, angles: int) -> None:
        self.buffers = (Buffer * buffers)()
        self.angles = (PositionAngles * max(1, angles))()
        self._run = _Run(
            threads=library.threads, buffers=ctypes.addressof(self.buffers), angles=ctypes.addressof(self.angles)
        )
        self._call = library.code.asyncpage_stack
        self._call.argtypes, self._call.restype = (ctypes.POINTER(_Run),), ctypes.c_int

    def run(self, instructions: ctypes.Array[Instruction], rows: int, positions: int) -> None:
        """`positions`: the address of the rows', int64. Errors: `MemoryError`.

        That addresses and sizes are right, and that angles are there for every position, is the caller's care.
        """
        run = self._run
        run.positions = positions
        run.instructions, run.count, run.rows = ctypes.addressof(instructions), len(instructions), rows
        if self._call(run):
            raise MemoryError(f"no memory for a step of {rows} tokens")
