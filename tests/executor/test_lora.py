"""Adapters in the executor: against the closed form x W + s x A B, whatever stands beside them, and when files fail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from asyncpage.adapters.shelf import read_adapter
from asyncpage.errors import ModelError, ProtocolError
from asyncpage.executor.lora import bank as module
from asyncpage.executor.lora.bank import AdapterBank
from asyncpage.executor.lora.segments import plan_segments
from asyncpage.messages import Adapter, LearnAdapter
from asyncpage.models.layers import Linear, RowMap
from tests.cases.model_folder import write_safetensors

CPU = torch.device("cpu")
ATTENTION, FEED = "model.layers.0.self_attn.", "model.layers.0.mlp."
IN, PARTS = 6, {"q_proj": 8, "k_proj": 4, "v_proj": 4}


def ints(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


# --- segments ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=8))
def test_each_token_of_an_adapter_is_in_its_segment_once_and_no_other_token_is(rows: list[tuple[int, int]]) -> None:
    slots, counts = (ints(*column) for column in zip(*rows, strict=True))
    segments = plan_segments(slots, counts, CPU)
    owners = [slot for slot, count in rows for _ in range(count)]
    if segments is None:
        assert not any(owners)
        return
    places = torch.arange(len(owners))[segments.places].tolist()
    assert segments.tokens == len(places)
    found = {slot: places[begin:end] for slot, begin, end in segments.parts}
    assert found == {slot: [at for at, one in enumerate(owners) if one == slot] for slot in set(owners) - {0}}
    assert [at for slot in sorted(found) for at in found[slot]] == places
    y = torch.zeros(len(owners), 2)
    segments.add(y, torch.ones(len(places), 2))
    assert y[:, 0].tolist() == [float(slot > 0) for slot in owners]


# --- products ---------------------------------------------------------------------------------------------------------


def write_adapter(folder: Path, ranks: Mapping[str, int], alpha: float = 4.0, seed: int = 0) -> Adapter:
    """Random A and B for these modules of layer 0."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for name, rank in ranks.items():
        stem = f"base_model.model.{ATTENTION if name in PARTS or name == 'o_proj' else FEED}{name}"
        tensors[f"{stem}.lora_A.weight"] = rng.standard_normal((rank, IN))
        tensors[f"{stem}.lora_B.weight"] = rng.standard_normal((PARTS.get(name, 5), rank))
    folder.mkdir(exist_ok=True)
    config = {
        "peft_type": "LORA", "r": 1, "lora_alpha": alpha, "target_modules": list(ranks), "rank_pattern": dict(ranks),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return read_adapter(str(folder), {linear.name: linear for linear in built()[0].linears}, 64)


def built(slots: int = 4, most_read: int = 4, dtype: torch.dtype = torch.float32) -> tuple[AdapterBank, RowMap, RowMap]:
    """A bank around a joined product of three and a single one."""
    bank = AdapterBank(slots=slots, most_read=most_read, max_rank=64, dtype=dtype, device="cpu")
    generator = torch.Generator().manual_seed(3)
    qkv = Linear(torch.randn(sum(PARTS.values()), IN, generator=generator).to(dtype))
    up = Linear(torch.randn(5, IN, generator=generator).to(dtype), torch.ones(5, dtype=dtype))
    joined = bank.adapt([ATTENTION + name for name in PARTS], list(PARTS.values()), IN, qkv)
    return bank, joined, bank.adapt([FEED + "up_proj"], [5], IN, up)


def delta(adapter: Adapter, name: str, x_TI: torch.Tensor) -> torch.Tensor:
    """s x A B in float64, of the files; 0 where the adapter does not change this one."""
    folder = Path(adapter.folder)
    settings_ = json.loads((folder / "adapter_config.json").read_text())
    raw = (folder / "adapter_model.safetensors").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    found = {}
    for key, info in json.loads(raw[8:end]).items():
        first, last = info["data_offsets"]
        found[key] = np.frombuffer(raw[end + first : end + last], "<f4").reshape(info["shape"]).astype(np.float64)
    stem = f"base_model.model.{ATTENTION if name in PARTS else FEED}{name}"
    if f"{stem}.lora_A.weight" not in found:
        return torch.zeros(len(x_TI), PARTS.get(name, 5), dtype=torch.float64)
    a, b = (torch.from_numpy(found[f"{stem}.lora_{one}.weight"]) for one in "AB")
    return settings_["lora_alpha"] / settings_["rank_pattern"][name] * (x_TI.double() @ a.T @ b.T)


def run(bank: AdapterBank, linear: RowMap, x_TI: torch.Tensor, slots: Sequence[int], counts: Sequence[int]) -> Any:
    for row, slot in enumerate(slots):
        assert bank.add(row, slot) is None
    bank.plan(np.arange(len(slots), dtype=np.int32), ints(*counts))
    with torch.inference_mode():
        return linear(x_TI)


@pytest.fixture
def three(tmp_path: Path) -> list[Adapter]:
    """Of different ranks; the second changes a part of the joined product, the third only the other one."""
    kinds: list[dict[str, int]] = [
        {"q_proj": 3, "k_proj": 1, "v_proj": 2, "up_proj": 4}, {"q_proj": 2, "v_proj": 5}, {"up_proj": 64},
    ]  # fmt: skip
    return [write_adapter(tmp_path / str(number), ranks, seed=number) for number, ranks in enumerate(kinds)]


SLOTS, COUNTS = [1, 0, 2, 3, 1, 2], [2, 3, 1, 1, 4, 1]


def test_every_part_of_a_joined_product_is_given_its_own_a_and_b(three: list[Adapter]) -> None:
    bank, joined, up = built()
    for slot, adapter in enumerate(three, 1):
        bank.learn(LearnAdapter(slot, adapter))
    x = torch.randn(12, IN, generator=torch.Generator().manual_seed(1))
    owners = [slot for slot, count in zip(SLOTS, COUNTS, strict=True) for _ in range(count)]
    for linear, names in ((joined, list(PARTS)), (up, ["up_proj"])):
        found = run(bank, linear, x, SLOTS, COUNTS)
        base = linear.linear(x)  # type: ignore[attr-defined]
        for token, slot in enumerate(owners):
            if not slot:
                assert torch.equal(found[token], base[token])
                continue
            more = torch.cat([delta(three[slot - 1], name, x[token : token + 1]) for name in names], 1)[0]
            torch.testing.assert_close(found[token].double(), base[token].double() + more, rtol=1e-5, atol=1e-5)


def test_a_row_of_no_numbers_spoils_no_other(three: list[Adapter]) -> None:
    bank, joined, _ = built()
    bank.learn(LearnAdapter(1, three[0]))
    bank.learn(LearnAdapter(2, three[1]))
    x = torch.randn(4, IN, generator=torch.Generator().manual_seed(1))
    whole = run(bank, joined, x, [1, 0, 1, 2], [1, 1, 1, 1])
    x[2] = torch.nan
    spoiled = run(bank, joined, x, [1, 0, 1, 2], [1, 1, 1, 1])
    assert spoiled[2].isnan().all()
    for row in (0, 1, 3):
        assert torch.equal(spoiled[row], whole[row])


def test_a_step_without_adapters_is_the_products_own(three: list[Adapter]) -> None:
    bank, joined, _ = built()
    bank.learn(LearnAdapter(1, three[0]))
    x = torch.randn(3, IN)
    run(bank, joined, x, [1], [3])
    assert torch.equal(run(bank, joined, x, [0, 0], [1, 2]), joined.linear(x))  # type: ignore[attr-defined]


def test_narrow_types_hold_the_sum_as_well_as_they_can(three: list[Adapter]) -> None:
    bank, joined, _ = built(dtype=torch.bfloat16)
    bank.learn(LearnAdapter(1, three[0]))
    x = torch.randn(4, IN, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = run(bank, joined, x, [1], [4])
    base = functional.linear(x.double(), joined.linear.weight.double())  # type: ignore[attr-defined]
    more = torch.cat([delta(three[0], name, x) for name in PARTS], 1)
    torch.testing.assert_close(found.double(), base + more, rtol=0.02, atol=0.2)


def test_what_is_no_map_of_all_tokens_is_left_as_it_is() -> None:
    bank, *_ = built()
    for name in (
        "lm_head",
        "model.layers.0.mlp.experts.3.up_proj",
        "model.layers.0.block_sparse_moe.experts.0.w1",
        "model.embed_tokens",
        "score",
    ):
        plain = Linear(torch.zeros(2, 2))
        assert bank.adapt([name], [2], 2, plain) is plain
    assert [linear.name for linear in bank.linears] == [*(ATTENTION + name for name in PARTS), FEED + "up_proj"]
    assert bank.most_bytes == 4 * 64 * 4 * (3 * IN + 16 + IN + 5)


# --- slots, memory, failures ------------------------------------------------------------------------------------------


def test_no_more_adapters_are_held_than_may_be_and_those_in_slots_stay(tmp_path: Path) -> None:
    reads: list[str] = []
    real = module.read_weights

    def read(adapter: Adapter, *rest: Any) -> Any:
        reads.append(adapter.folder[-1])
        return real(adapter, *rest)

    adapters = [write_adapter(tmp_path / str(number), {"q_proj": 2}, seed=number) for number in range(5)]
    bank, *_ = built(slots=2, most_read=3)
    with patch.object(module, "read_weights", read):
        for number in (0, 1, 2, 0, 3, 4, 0, 1):
            bank.learn(LearnAdapter(1, adapters[number]))
            assert bank.add(0, 1) is None
            assert len(bank._reads) <= 3
    # 0 was kept until 3 and 4 came; three are kept at once.
    assert reads == ["0", "1", "2", "3", "4", "1"]
    bank.close()


def test_an_adapter_whose_files_are_gone_or_changed_fails_its_rows_alone_until_they_are_back(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", {"q_proj": 2})
    other = write_adapter(tmp_path / "b", {"q_proj": 2}, seed=1)
    (tmp_path / "a").rename(tmp_path / "c")
    bank, joined, _ = built()
    bank.learn(LearnAdapter(1, adapter))
    bank.learn(LearnAdapter(2, other))
    assert "no such folder" in str(bank.add(0, 1))
    x = torch.randn(2, IN)
    assert bank.add(1, 2) is None
    bank.plan(ints(1), ints(2))
    assert not torch.equal(joined(x), joined.linear(x))  # type: ignore[attr-defined]
    write_adapter(tmp_path / "a", {"q_proj": 2}, seed=7)
    assert "have changed since it was loaded" in str(bank.add(0, 1))
    write_adapter(tmp_path / "a", {"q_proj": 2})
    assert bank.add(0, 1) is None


def test_files_are_not_needed_any_more_once_they_were_read(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", {"q_proj": 2})
    bank, *_ = built()
    bank.learn(LearnAdapter(1, adapter))
    assert bank.add(0, 1) is None
    (tmp_path / "a").rename(tmp_path / "b")
    bank.learn(LearnAdapter(2, adapter))
    assert bank.add(1, 2) is None


def test_a_scale_that_a_narrow_type_cannot_hold_fails_the_adapter(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", {"q_proj": 2}, alpha=1e9)
    bank, *_ = built(dtype=torch.float16)
    bank.learn(LearnAdapter(1, adapter))
    assert "too large for torch.float16" in str(bank.add(0, 1))


def test_whatever_goes_wrong_while_reading_is_the_rows_own(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", {"q_proj": 2})
    bank, *_ = built()
    with patch.object(module, "read_weights", side_effect=MemoryError("no room")):
        bank.learn(LearnAdapter(1, adapter))
        assert bank.add(0, 1) == "the adapter cannot be read: MemoryError: no room"


def test_slots_that_were_not_told_of_are_a_fault_of_the_other_side(tmp_path: Path) -> None:
    bank, *_ = built(slots=2)
    for slot in (1, 2, 3, -1):
        with pytest.raises(ProtocolError):
            bank.add(0, slot)
    for slot in (0, 3):
        with pytest.raises(ProtocolError):
            bank.learn(LearnAdapter(slot, Adapter("a" * 64, str(tmp_path))))


def test_an_adapter_of_another_model_is_refused_here_too(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", {"up_proj": 2})
    other = AdapterBank(slots=1, most_read=1, max_rank=64, dtype=torch.float32, device="cpu")
    other.adapt([ATTENTION + "q_proj"], [8], IN, Linear(torch.zeros(8, IN)))
    other.learn(LearnAdapter(1, adapter))
    assert "no linear map of this model" in str(other.add(0, 1))
    with pytest.raises(ModelError):
        read_adapter(adapter.folder, {}, 64)
