"""Native attention: to the bit the same, however a step is cut, whoever is beside a row and shares the work.

What it computes is held to float64 by the kit that is shipped for others (test_conformance).
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from asyncpage.backends import native
from asyncpage.backends.contract import AttentionSpec, Batch, DeviceInfo, LayerParams, Limits
from asyncpage.backends.memory import allocate_kv
from asyncpage.backends.native import NativeBackend
from asyncpage.errors import ExecutorError
from asyncpage.kernels.loaded import Library, current_library

CPU = DeviceInfo("cpu", "any")
BLOCK = 16
BLOCKS = 400
LIMITS = Limits(max_seqs=16, max_tokens=700, max_kv=1400)

SPECS = {
    "grouped": {},
    "one head a key head": {"q_heads": 2, "kv_heads": 2},
    "sixteen heads a key head": {"q_heads": 16, "kv_heads": 1, "head_dim": 40},
    "window": {"window": 150},
    "narrow window": {"window": 9},
    "bounded, biased, with sinks": {"softcap": 4.0, "alibi": True, "sinks": True},
    "float16": {"kv_dtype": "float16"},
    "bfloat16": {"kv_dtype": "bfloat16"},
    "latent": {"kind": "mla", "q_heads": 6, "kv_heads": 1, "head_dim": 80, "v_head_dim": 64},
    "latent float16": {
        "kind": "mla", "q_heads": 6, "kv_heads": 1, "head_dim": 80, "v_head_dim": 64, "kv_dtype": "float16",
    },
}  # fmt: skip


def spec_of(**changes: Any) -> AttentionSpec:
    plain: dict[str, Any] = {
        "kind": "mha", "q_heads": 6, "kv_heads": 2, "head_dim": 64, "dtype": "float32", "kv_dtype": "float32",
        "block_size": BLOCK,
    }  # fmt: skip
    plain |= changes
    plain.setdefault("v_head_dim", plain["head_dim"])
    return AttentionSpec(**plain)


class Scene:
    """Sequences of random keys, values and queries in a cache whose blocks are strewn about."""

    def __init__(self, spec: AttentionSpec, lengths: list[int], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
        library = current_library()
        assert isinstance(library, Library), library
        monkeypatch.setattr(native, "current_library", lambda: replace(library, threads=threads))
        self.spec, self.lengths = spec, lengths
        self.backend = NativeBackend(spec, CPU, LIMITS)
        self.workspace = torch.empty(self.backend.workspace_bytes(LIMITS), dtype=torch.uint8)
        self.kv = allocate_kv(NativeBackend.kv_layout(spec, CPU), BLOCKS, CPU).fill_(torch.nan)
        dice = torch.Generator().manual_seed(5)
        blocks = (torch.randperm(BLOCKS - 1, generator=dice) + 1).to(torch.int32)
        width = max(-(-length // BLOCK) for length in lengths)
        self.table = blocks[: len(lengths) * width].view(len(lengths), width)
        sides = [(spec.q_heads, spec.head_dim), (spec.kv_heads, spec.head_dim), (spec.kv_heads, spec.v_head_dim)]
        self.q, self.k, self.v = ([torch.randn(length, *side, generator=dice) for length in lengths] for side in sides)
        if spec.kind == "mla":
            self.v = [k[..., : spec.v_head_dim] for k in self.k]
        slopes, sinks = (torch.randn(spec.q_heads, generator=dice) for _ in range(2))
        self.params = LayerParams(0.2, slopes=slopes if spec.alibi else None, sinks=sinks if spec.sinks else None)

    def step(self, rows: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """(sequence, from token, to token) in one step; outputs of each, with logarithms of denominators behind."""
        starts = np.cumsum([0, *(end - begin for _, begin, end in rows)]).astype(np.int32)
        lengths = np.array([end for _, _, end in rows], dtype=np.int32)
        slots = torch.cat(
            [
                self.table[number, torch.arange(begin, end) // BLOCK].long() * BLOCK + torch.arange(begin, end) % BLOCK
                for number, begin, end in rows
            ]
        )
        table = self.table[[number for number, _, _ in rows]].contiguous()
        batch = Batch(
            n_seqs=len(rows), n_tokens=len(slots), max_q=int(np.diff(starts).max()), max_kv=int(lengths.max()),
            cu_q_host=starts, kv_len_host=lengths, cu_q=torch.from_numpy(starts), kv_len=torch.from_numpy(lengths),
            block_table=table, slots=slots,
        )  # fmt: skip
        q, k, v = (torch.cat([of[number][begin:end] for number, begin, end in rows]) for of in (self.q, self.k, self.v))
        plan = self.backend.plan(batch, self.workspace)
        self.backend.write_kv(k, v, self.kv, plan, self.params)
        out = torch.full((len(q), self.spec.q_heads, self.spec.v_head_dim), 7.0)
        lse = torch.full((len(q), self.spec.q_heads), 7.0)
        self.backend.run(q, self.kv, out, plan, self.params, lse)
        both = torch.cat([out, lse[..., None]], dim=-1)
        return [both[begin:end] for begin, end in itertools.pairwise(starts.tolist())]


LENGTHS = [600, 1, 17, 128, 129, 333]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", SPECS)
def test_a_token_is_given_the_same_to_the_bit_alone_in_chunks_and_in_company(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(**SPECS[name])
    whole = Scene(spec, LENGTHS, 1, monkeypatch)
    wanted = [whole.step([(number, 0, length)])[0] for number, length in enumerate(LENGTHS)]
    assert all(of.isfinite().all() for of in wanted)
    scene = Scene(spec, LENGTHS, threads, monkeypatch)
    for begin, end in itertools.pairwise([0, 1, 16, 17, 40, 127, 128, 131, 300, 555, 599, 600]):
        rows = [
            (number, begin, min(end, length)) for number, length in enumerate(LENGTHS) if begin < length
        ]  # fmt: skip
        for (number, first, last), found in zip(rows, scene.step(rows), strict=True):
            assert torch.equal(found, wanted[number][first:last])
    # One token alone has its keys shared by threads.
    for number, length in enumerate(LENGTHS):
        assert torch.equal(scene.step([(number, length - 1, length)])[0], wanted[number][-1:])


@pytest.mark.parametrize("name", SPECS)
def test_who_is_not_a_number_spoils_neither_neighbours_nor_what_came_before(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(spec_of(**SPECS[name]), [200, 40], 2, monkeypatch)
    wanted = scene.step([(0, 0, 200), (1, 0, 40)])
    for of in (scene.k, scene.v, scene.q):
        of[0][150] = torch.nan
    found = scene.step([(0, 0, 200), (1, 0, 40)])
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[0][:150], wanted[0][:150])
    assert found[0][150, :, :-1].isnan().all()


def test_a_step_beyond_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(spec_of(), [600], 2, monkeypatch)
    scene.workspace = scene.workspace[:1000]
    with pytest.raises(ExecutorError, match="a step of 1 sequences and 600 tokens is beyond the limits"):
        scene.step([(0, 0, 600)])


def test_without_native_code_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "lack", lambda: "there is no C++ compiler; install g++ or clang++")
    assert NativeBackend.unsupported(spec_of(), CPU) == [
        "needs native code: there is no C++ compiler; install g++ or clang++"
    ]
    monkeypatch.setattr(native, "current_library", lambda: "there is none")
    with pytest.raises(ExecutorError, match="there is no native code: there is none"):
        NativeBackend(spec_of(), CPU, LIMITS)


def test_what_python_hands_over_is_laid_out_as_the_library_has_it() -> None:
    """Every field takes eight bytes, so that none is padded."""
    for struct in (native.Group, native.StepPlan, native.LayerCall):
        assert ctypes.sizeof(struct) == 8 * len(struct._fields_)


def test_heads_that_lie_apart_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As views of one product that has a head's query, key and value side by side."""
    scene = Scene(spec_of(q_heads=2, kv_heads=2), [40], 1, monkeypatch)
    wanted = scene.step([(0, 0, 40)])[0]
    apart = [torch.full((40, 2, 3, 64), torch.nan) for _ in range(3)]
    for strewn, of in zip(apart, (scene.q, scene.k, scene.v), strict=True):
        strewn[:, :, 1] = of[0]
        of[0] = strewn[:, :, 1]
    monkeypatch.setattr(torch, "cat", lambda parts, dim=0: parts[0] if len(parts) == 1 else cat(parts, dim))
    assert torch.equal(scene.step([(0, 0, 40)])[0], wanted)


cat = torch.cat
