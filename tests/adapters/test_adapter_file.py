"""An adapter's folder: checked whole against the model's linear maps, and named by every byte of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.adapters.adapter_file import AdapterFile
from asyncpage.errors import FormatError, ModelError
from tests.adapters.adapter_folder import LINEARS, tensors, write
from tests.cases.model_folder import Array, write_safetensors

Q = "base_model.model.model.layers.0.self_attn.q_proj"
WEIGHTS = "adapter_model.safetensors"


def read(folder: Path, max_rank: int = 64) -> AdapterFile:
    """The adapter, read to its end."""
    file = AdapterFile(folder, LINEARS, max_rank)
    try:
        for info, values in file.read():
            assert len(values) == info.size
    finally:
        file.close()
    return file


def test_every_change_is_told_with_its_tensors_and_its_scale(tmp_path: Path) -> None:
    found = {change.linear.name: change for change in read(write(tmp_path / "a")).changes}
    assert list(found) == [name for name in LINEARS if "self_attn" in name]
    change = found["model.layers.0.self_attn.q_proj"]
    assert (change.rank, change.scale, change.a, change.b) == (3, 2.0, f"{Q}.lora_A.weight", f"{Q}.lora_B.weight")


def test_equal_files_are_one_adapter_wherever_they_lie_and_any_other_byte_makes_another(tmp_path: Path) -> None:
    first = read(write(tmp_path / "a")).identity
    assert len(first) == 64
    assert read(write(tmp_path / "b")).identity == first
    others = {first}
    others.add(read(write(tmp_path / "c", lora_alpha=7)).identity)
    others.add(read(write(tmp_path / "d", tensors(seed=1))).identity)
    changed = write(tmp_path / "e") / WEIGHTS
    data = bytearray(changed.read_bytes())
    data[-1] ^= 1
    changed.write_bytes(data)
    others.add(read(tmp_path / "e").identity)
    named = write(tmp_path / "f") / "adapter_config.json"
    named.write_text(named.read_text() + " ")
    others.add(read(tmp_path / "f").identity)
    assert len(others) == 5


def without(name: str) -> Callable[[dict[str, Array]], None]:
    return lambda weights: weights.__delitem__(f"{Q}.{name}.weight")


def adds(name: str, shape: tuple[int, ...] = (2, 2)) -> Callable[[dict[str, Array]], None]:
    return lambda weights: weights.__setitem__(name, np.zeros(shape, dtype="<f4"))


def sets(number: float) -> Callable[[dict[str, Array]], None]:
    return lambda weights: weights[f"{Q}.lora_B.weight"].__setitem__((0, 0), number)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("lora_A"), ["q_proj", "lora_A"]),
        (without("lora_B"), ["q_proj", "lora_B"]),
        (lambda weights: [weights.pop(name) for name in list(weights) if name.startswith(Q)], ["q_proj", "targeted"]),
        (lambda weights: weights.clear(), ["no tensor"]),
        (adds(f"{Q}.lora_A.weight", (4, 4)), ["lora_A", "[4, 4]", "[3, 4]"]),
        (adds(f"{Q}.lora_B.weight", (3, 6)), ["lora_B", "[3, 6]", "[6, 3]"]),
        (adds(f"{Q}.lora_A.default.weight"), ["lora_A.default.weight", "PEFT"]),
        (adds("model.layers.0.self_attn.q_proj.lora_A.weight"), ["PEFT", "base_model.model."]),
        (adds("base_model.model.lm_head.lora_A.weight"), ["lm_head", "not target"]),
        (adds("base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"), ["down_proj", "not target"]),
        (adds("base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"), ["layers.7", "no linear map"]),
        (adds("base_model.model.model.embed_tokens.lora_embedding_A"), ["lora_embedding_A", "embedding"]),
        (adds(f"{Q}.lora_magnitude_vector.weight"), ["DoRA"]),
        (adds(f"{Q}.lora_B.bias"), ["bias"]),
        (adds("base_model.model.lm_head.modules_to_save.weight"), ["modules_to_save", "whole"]),
        (sets(float("nan")), ["lora_B", "not finite"]),
        (sets(float("-inf")), ["lora_B", "not finite"]),
    ],
)  # fmt: skip
def test_a_tensor_that_does_not_fit_is_told_by_name(
    change: Callable[[dict[str, Array]], Any], words: list[str], tmp_path: Path
) -> None:
    weights = tensors()
    change(weights)
    with pytest.raises(FormatError) as refusal:
        read(write(tmp_path / "a", weights))
    for word in (WEIGHTS, *words):
        assert word in str(refusal.value)


def test_a_head_is_refused_by_name_also_where_it_is_targeted(tmp_path: Path) -> None:
    weights = {**tensors(), "base_model.model.lm_head.lora_A.weight": np.zeros((3, 4), dtype="<f4")}
    with pytest.raises(FormatError, match=r"'lm_head'.* is no linear map of this model that adapters may change"):
        read(write(tmp_path / "a", weights, target_modules=["q_proj", "v_proj", "lm_head"]))


def test_a_rank_beyond_the_greatest_is_refused_with_the_flag(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", tensors(rank=9), r=9)
    assert read(folder, max_rank=9).changes[0].rank == 9
    with pytest.raises(FormatError, match="rank 9, and --max-lora-rank is 8"):
        read(folder, max_rank=8)


@pytest.mark.parametrize(
    ("dtype", "bits", "is_finite"),
    [
        ("F16", 0x7BFF, True), ("F16", 0x7C00, False), ("F16", 0xFE00, False),
        ("BF16", 0x7F7F, True), ("BF16", 0x7F80, False), ("BF16", 0xFFC1, False),
    ],
)  # fmt: skip
def test_numbers_of_half_width_are_looked_at_too(dtype: str, bits: int, is_finite: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    header: dict[str, Any] = {}
    body = b""
    for name, tensor in tensors().items():
        part = np.full(tensor.shape, bits, dtype="<u2").tobytes()
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + body)
    if is_finite:
        assert read(folder).identity
    else:
        with pytest.raises(FormatError, match="not finite"):
            read(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "adapter_config.json").unlink(), ["adapter_config.json", "PEFT"]),
        (lambda folder: (folder / WEIGHTS).unlink(), [WEIGHTS, "no such file"]),
        (lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.bin"), ["pickled"]),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), ["adapter_config.json", "object"]),
        (lambda folder: (folder / "adapter_config.json").write_bytes(b" " * (5 << 20)), ["bytes"]),
        (lambda folder: os.truncate(folder / WEIGHTS, 100), [WEIGHTS]),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), ["empty"]),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), ["no such folder"]),
    ],
)
def test_a_folder_that_is_none_says_what_is_missing(
    spoil: Callable[[Path], Any], words: list[str], tmp_path: Path
) -> None:
    folder = write(tmp_path / "a")
    spoil(folder)
    with pytest.raises(ModelError) as refusal:
        read(folder)
    for word in words:
        assert word in str(refusal.value)


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    with pytest.raises(ModelError, match="not a regular file"):
        read(folder)


def test_files_that_change_while_they_are_read_are_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    whole = (folder / WEIGHTS).read_bytes()
    for spoiled in (whole[:-8], bytes(9) + whole[9:]):
        (folder / WEIGHTS).write_bytes(whole)
        file = AdapterFile(folder, LINEARS, 64)
        (folder / WEIGHTS).write_bytes(spoiled)
        with pytest.raises(FormatError, match="while it was read"):
            list(file.read())
        file.close()


def test_names_and_settings_are_checked_before_the_model_is_known(tmp_path: Path) -> None:
    AdapterFile(write(tmp_path / "a"), None, 64).close()
    with pytest.raises(FormatError, match="DoRA"):
        AdapterFile(write(tmp_path / "b", use_dora=True), None, 64)
    with pytest.raises(FormatError, match="not target"):
        AdapterFile(write(tmp_path / "c", target_modules=["k_proj"]), None, 64)


SPOILED = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SPOILED, st.sampled_from([WEIGHTS, "adapter_config.json"]), st.none() | st.floats(0, 1))
def test_spoiled_bytes_are_refused_with_one_line_or_are_another_adapter(
    tmp_path: Path, spoiled: list[tuple[float, int]], name: str, cut: float | None
) -> None:
    folder = write(tmp_path / "a")
    whole = read(folder).identity
    data = bytearray((folder / name).read_bytes())
    before = bytes(data)
    span = 8 + int.from_bytes(data[:8], "little") if name == WEIGHTS else len(data)  # of the header, mostly
    for place, byte in spoiled:
        data[int(place * span)] = byte
    if cut is not None:
        del data[int(cut * len(data)) :]
    (folder / name).write_bytes(data)
    with contextlib.suppress(ModelError):
        found = read(folder).identity
        assert (found == whole) == (bytes(data) == before)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=12)
        | st.builds(
            lambda module, end: f"base_model.model.{module}.{end}",
            st.sampled_from([*LINEARS, "lm_head", "model.embed_tokens"]),
            st.sampled_from(["lora_A.weight", "lora_B.weight", "lora_B.bias", "weight"]),
        ),
        st.lists(st.integers(0, 4), max_size=3),
        max_size=6,
    )
)
def test_any_header_is_refused_or_names_whole_pairs(tmp_path: Path, shapes: dict[str, list[int]]) -> None:
    folder = write(tmp_path / "a", target_modules="all-linear")
    weights = {name: np.zeros(shape, dtype="<f4") for name, shape in shapes.items()}
    write_safetensors(folder / WEIGHTS, weights)
    with contextlib.suppress(ModelError):
        file = read(folder)
        assert len(file.changes) * 2 == len(weights)
