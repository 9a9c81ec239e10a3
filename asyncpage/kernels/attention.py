"""Native attention over a paged cache, called by addresses and without the interpreter's lock (ctypes).

`backends.native` plans with it and attends. Sources: `cpu/attention.hpp`.

INVARIANT: what a query is given is made of its own sequence and position alone, bit for bit, whatever else is in its
step, however the step is cut and whoever shares the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpage.kernels.loaded import Library

KV_KINDS: Mapping[str, int] = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Types of caches that there is code for, as it counts them."""

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


def _fields(kind: Any, names: str) -> Sequence[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Group(ctypes.Structure):
    """What a group of layers shares. `window`: 0 for none."""

    _fields_ = [
        *_fields(_INT, "q_heads kv_heads head_dim v_head_dim block_size window kv is_latent threads"),
        ("softcap", _DOUBLE),
    ]


class StepPlan(ctypes.Structure):
    """A step: addresses of int32 `starts` [sequences + 1], `lengths`, `table`, int64 `slots` [tokens]; the rest is the
    library's own."""

    _fields_ = [
        *_fields(_INT, "sequences tokens table_stride"),
        *_fields(_POINTER, "starts lengths table slots workspace"),
        ("workspace_bytes", _INT),
        ("items", _POINTER),
        *_fields(_INT, "count whole_count is_cut"),
        *_fields(_POINTER, "scratch partials"),
    ]


class LayerCall(ctypes.Structure):
    """A layer: addresses of its cache, and of float32 `sinks` and `slopes` [q_heads] or None."""

    _fields_ = [("kv", _POINTER), ("scale", _DOUBLE), ("sinks", _POINTER), ("slopes", _POINTER)]


class NativeAttention:
    """The library's functions. Strides are in items; that memory is there where addresses say is the caller's care."""

    def __init__(self, library: Library) -> None:
        code, group, step, layer = library.code, *map(ctypes.POINTER, (Group, StepPlan, LayerCall))
        self.threads = library.threads
        self.workspace_bytes = code.asyncpage_attention_workspace
        self.workspace_bytes.argtypes, self.workspace_bytes.restype = (group, _INT, _INT), _INT
        self.plan = code.asyncpage_attention_plan
        self.plan.argtypes, self.plan.restype = (group, step), ctypes.c_int
        self.write = code.asyncpage_attention_write
        self.write.argtypes, self.write.restype = (group, step, layer, _POINTER, _INT, _POINTER, _INT), None
        self.run = code.asyncpage_attention_run
        self.write_address, self.run_address = (_address(function) for function in (self.write, self.run))
        self.run.argtypes, self.run.restype = (group, step, layer, _POINTER, _INT, _POINTER, _INT, _POINTER), None


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None, "a function is somewhere"
    return found
