"""Quantised folders are the models they stand for, by the names and in the types of plain ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncpage.errors import FormatError, ModelError
from asyncpage.weights.checkpoint import open_checkpoint
from tests.weights.quantised_models import Pack, Written, awq, fp8, gptq, write_quantised
from tests.weights.tiny_models import tiny

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
BLOCKS = FP8 | {"weight_block_size": [16, 24]}


def compressed(strategy: str, block: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights | {"block_structure": block}, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    } | changes  # fmt: skip


@dataclass(frozen=True)
class Case:
    settings: dict[str, Any]
    pack: Pack
    label: str


CASES = {
    "gptq": Case(GPTQ, gptq(), "GPTQ in 4 bits"),
    "gptq 8 bits": Case(GPTQ | {"bits": 8}, gptq(8), "GPTQ in 8 bits"),
    "gptq one group": Case(GPTQ | {"group_size": -1}, gptq(group_size=-1), "GPTQ in 4 bits"),
    "gptq last group short": Case(GPTQ | {"group_size": 40}, gptq(group_size=40), "GPTQ in 4 bits"),
    "gptq reordered": Case(GPTQ | {"desc_act": True}, gptq(desc_act=True), "GPTQ in 4 bits"),
    "gptq symmetric": Case(GPTQ | {"sym": True}, gptq(sym=True), "GPTQ in 4 bits"),
    "gptq without index": Case(GPTQ, gptq(index=False), "GPTQ in 4 bits"),
    "gptq v2": Case(GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(v2=True), "GPTQ in 4 bits"),
    "gptq v2 symmetric 8 bits": Case(
        GPTQ | {"bits": 8, "sym": True, "format": "gptq_v2"}, gptq(8, sym=True, v2=True), "GPTQ in 8 bits"
    ),
    "gptq wide scales": Case(GPTQ, gptq(scale_dtype=torch.bfloat16), "GPTQ in 4 bits"),
    "awq": Case(AWQ, awq(), "AWQ in 4 bits"),
    "awq one group": Case(AWQ | {"group_size": -1, "version": "GEMM"}, awq(-1), "AWQ in 4 bits"),
    "awq other names": Case(
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 16, "zero_point": True}, awq(), "AWQ in 4 bits"
    ),
    "fp8 tensor": Case(FP8, fp8(), "FP8 (e4m3, weights only)"),
    "fp8 tensor, named inverse": Case(FP8, fp8(shape="one", name="weight_scale_inv"), "FP8 (e4m3, weights only)"),
    "fp8 channel": Case(FP8, fp8(shape="column"), "FP8 (e4m3, weights only)"),
    "fp8 static": Case(FP8 | {"activation_scheme": "static"}, fp8(static=True), "FP8 (e4m3, weights only)"),
    "fp8 blocks": Case(BLOCKS, fp8((16, 24), name="weight_scale_inv"), "FP8 (e4m3, weights only)"),
    "fp8 blocks beyond": Case(
        FP8 | {"weight_block_size": [128, 128]}, fp8((128, 128), name="weight_scale_inv"), "FP8 (e4m3, weights only)"
    ),
    "compressed tensor": Case(compressed("tensor"), fp8(shape="one"), "FP8 (e4m3, weights only)"),
    "compressed channel": Case(compressed("channel"), fp8(shape="column"), "FP8 (e4m3, weights only)"),
    "compressed block": Case(compressed("block", [20, 20]), fp8((20, 20)), "FP8 (e4m3, weights only)"),
}
WriteCase = Callable[..., Written]


@pytest.fixture
def write(tmp_path: Path) -> WriteCase:
    """Writes a case of a tiny model; other arguments are the family's settings."""

    def write(case: Case, family: str = "Llama", left_alone: tuple[str, ...] = (), **settings: Any) -> Written:
        return write_quantised(tiny(family, **settings), tmp_path, case.pack, case.settings, left_alone)

    return write


@pytest.mark.parametrize("name", CASES)
def test_a_weight_is_what_its_layout_says(name: str, write: WriteCase) -> None:
    case = CASES[name]
    written = write(case, num_hidden_layers=1)
    checkpoint = open_checkpoint(written.folder)
    assert set(checkpoint.names) == set(written.truth)
    assert checkpoint.stored_as == (case.label,)
    for tensor, truth in written.truth.items():
        assert torch.equal(checkpoint.tensor(tensor, torch.float32), truth), tensor
        assert torch.equal(checkpoint.tensor(tensor, torch.bfloat16), truth.bfloat16()), tensor
    checkpoint.close()


@pytest.mark.parametrize(("name", "block"), [("fp8 blocks", [16, 24]), ("fp8 blocks beyond", [128, 128])])
def test_fp8_blocks_are_read_as_transformers_dequantises_them(name: str, block: list[int], write: WriteCase) -> None:
    written = write(CASES[name], hidden_size=48, intermediate_size=48, head_dim=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, that there is no GPU
        oracle = AutoModelForCausalLM.from_pretrained(written.folder, dtype=torch.float32)
    checkpoint = open_checkpoint(written.folder)
    for tensor, truth in oracle.state_dict().items():
        assert torch.equal(checkpoint.tensor(tensor, torch.bfloat16), truth.bfloat16()), tensor


def test_a_weight_larger_than_a_chunk_is_whole(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    for settings, parts in (
        (GPTQ, {"qweight": (128, 4096), "qzeros": (64, 512), "scales": (64, 4096)}),
        (AWQ, {"qweight": (1024, 512), "qzeros": (64, 512), "scales": (64, 4096)}),
    ):
        stored = {
            f"x.{name}": torch.ones(shape, dtype=torch.half)
            if name == "scales"
            else torch.randint(-(1 << 31), 1 << 31, shape, generator=random).int()
            for name, shape in parts.items()
        }
        Written(tmp_path, stored, {}, {"model_type": "other", "quantization_config": settings}).save()
        found = open_checkpoint(tmp_path).tensor("x.weight", torch.float32)
        assert found.shape == (4096, 1024)
        for n, k in ((0, 0), (4095, 1023), (1234, 567), (4000, 300)):
            zero_place, offset = (n % 8, 1) if settings is GPTQ else ((0, 4, 1, 5, 2, 6, 3, 7)[n % 8], 0)
            word = int(stored["x.qweight"][k // 8, n] if settings is GPTQ else stored["x.qweight"][k, n // 8])
            zeros = (int(stored["x.qzeros"][k // 16, n // 8]) + 0x11111111 * offset) % (1 << 32)
            item = word >> 4 * (k % 8 if settings is GPTQ else zero_place) & 15
            assert found[n, k] == item - (zeros >> 4 * zero_place & 15)


def test_a_quantised_head_is_no_tied_one(tmp_path: Path) -> None:
    stored = {f"lm_head.{name}": part for name, part in gptq()(32, 16, torch.Generator().manual_seed(1)).parts.items()}
    Written(tmp_path, stored, {}, {"model_type": "other", "quantization_config": GPTQ}).save()
    checkpoint = open_checkpoint(tmp_path)
    assert "tie_word_embeddings" not in checkpoint.config
    assert checkpoint.names == ("lm_head.weight",)


def test_a_folder_whose_weights_are_all_left_alone_is_plain(write: WriteCase) -> None:
    written = write(CASES["awq"], left_alone=("_proj",))
    checkpoint = open_checkpoint(written.folder)
    assert checkpoint.stored_as == ()
    assert torch.equal(checkpoint.tensor("lm_head.weight", torch.float32), written.truth["lm_head.weight"])
    with pytest.raises(ModelError, match="has no tensor 'nothing'"):
        checkpoint.tensor("nothing", torch.float32)


Q = "model.layers.0.self_attn.q_proj."
Damage = tuple[str, Callable[[dict[str, Any]], object], str]


def replaced(part: str, new: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], object]:
    return lambda stored: stored.update({Q + part: new(stored[Q + part]).contiguous()})


def removed(part: str) -> Callable[[dict[str, Any]], object]:
    return lambda stored: stored.pop(Q + part)


DAMAGES: list[Damage] = [
    ("gptq", removed("qzeros"), "qzeros'.*is not there"),
    ("gptq", removed("scales"), "scales'.*is not there"),
    ("gptq", replaced("scales", lambda scales: scales[:-1]), r"scales'.*shape \[2, 48\], \[3, 48\] is needed"),
    ("gptq", replaced("scales", torch.Tensor.int), "scales'.*dtype I32"),
    ("gptq", replaced("scales", lambda scales: scales / 0), "scales'.*infinite"),
    ("gptq", replaced("qweight", lambda packed: packed[:, :-3]), "qweight'.*45 columns.*words of 8"),
    ("gptq", replaced("qweight", lambda packed: packed.flatten()), "qweight'.*2 dimensions"),
    ("gptq", replaced("qweight", torch.Tensor.long), "qweight'.*dtype I64"),
    ("gptq", replaced("g_idx", lambda groups: groups + 1), "g_idx'.*groups 1 to 3, there are 0 to 2"),
    ("gptq", replaced("g_idx", lambda groups: groups.flip(0)), "g_idx'.*out of order, and desc_act"),
    ("gptq", lambda stored: stored.update({Q + "weight": torch.ones(2)}), "weight'.*quantised and plain"),
    ("gptq reordered", removed("g_idx"), "g_idx'.*is not there"),
    ("gptq reordered", replaced("g_idx", lambda groups: groups - 1), "g_idx'.*groups -1 to 1"),
    ("gptq symmetric", replaced("qzeros", lambda zeros: zeros + 1), "qzeros'.*zero point 9 where sym.*means 8"),
    ("awq", removed("qzeros"), "qzeros'.*is not there"),
    ("awq", replaced("scales", lambda scales: scales[:, 1:]), r"scales'.*\[3, 47\], \[3, 48\] is needed"),
    ("awq", replaced("qzeros", lambda zeros: zeros[:, 1:]), r"qzeros'.*\[3, 5\], \[3, 6\] is needed"),
    ("fp8 tensor", removed("weight_scale"), "weight'.*weight_scale_inv and weight_scale, and has none"),
    ("fp8 tensor", removed("weight"), "weight'.*is not there"),
    ("fp8 tensor", replaced("weight", torch.Tensor.bfloat16), "weight'.*dtype BF16, F8_E4M3 is needed"),
    ("fp8 tensor", replaced("weight", lambda w: w.to(torch.float8_e5m2)), "weight'.*dtype F8_E5M2"),
    ("fp8 tensor", replaced("weight_scale", lambda scale: scale * torch.nan), "weight_scale'.*no number"),
    ("fp8 tensor", replaced("weight_scale", lambda scale: scale.expand(2, 2)), r"weight_scale'.*shape \[2, 2\]"),
    ("fp8 blocks", replaced("weight_scale_inv", lambda grid: grid[:, :1]), r"weight_scale_inv'.*shape \[3, 1\]"),
    (
        "fp8 blocks",
        lambda stored: stored.update({Q + "weight_scale": torch.ones(())}),
        "weight'.*weight_scale_inv and weight_scale, and has both",
    ),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGES)
def test_a_damaged_weight_is_refused_by_name(
    name: str, damage: Callable[[dict[str, Any]], object], said: str, write: WriteCase
) -> None:
    written = write(CASES[name], num_hidden_layers=1)
    damage(written.stored)
    written.save()
    with pytest.raises(FormatError, match=Q.replace(".", r"\.") + said):
        open_checkpoint(written.folder).tensor(f"{Q}weight", torch.float32)


REFUSED: list[tuple[Any, str, str]] = [
    (4, "quantization_config", "is not an object"),
    ({"quant_method": "bitnet"}, "quantization_config", "'bitnet' is not supported; gptq, awq, fp8"),
    ({"quant_method": ["gptq"]}, "quantization_config", "is not supported"),
    ({"bits": 4}, "quantization_config", "None"),
    (GPTQ | {"bits": 3}, "bits", "4 or 8"),
    (GPTQ | {"bits": "4"}, "bits", "4 or 8"),
    (GPTQ | {"group_size": 0}, "group_size", "positive"),
    (GPTQ | {"group_size": None}, "group_size", "whole number"),
    (GPTQ | {"sym": 1}, "sym", "true or false"),
    (GPTQ | {"desc_act": "no"}, "desc_act", "true or false"),
    (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format", "'gptq' or 'gptq_v2' is"),
    (GPTQ | {"is_marlin_format": True}, "is_marlin_format", "False is"),
    (GPTQ | {"format": "bitblas"}, "format", "is not supported"),
    (GPTQ | {"format": "gptq", "checkpoint_format": "gptq_v2"}, "checkpoint_format", "and format"),
    (GPTQ | {"pack_dtype": "int64"}, "pack_dtype", "'int32' is"),
    (GPTQ | {"dynamic": {"-:.*down.*": {}, "+:.*up.*": {"bits": 8}}}, "dynamic", "other bits"),
    (GPTQ | {"adapter": {"path": "x"}}, "adapter", "null is"),
    (AWQ | {"bits": 8}, "bits", "4 is needed"),
    (AWQ | {"version": "gemv"}, "version", "'gemm' is"),
    (AWQ | {"zero_point": False}, "zero_point", "True is"),
    (AWQ | {"backend": "llm-awq"}, "backend", "another order"),
    (FP8 | {"fmt": "e5m2"}, "fmt", "'e4m3' is"),
    (FP8 | {"activation_scheme": "other"}, "activation_scheme", "'dynamic' or 'static' is"),
    (FP8 | {"weight_block_size": [128]}, "weight_block_size", "two positive numbers"),
    (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size", "two positive numbers"),
    (FP8 | {"expert_dtype": "fp4"}, "expert_dtype", "'fp8' is"),
    (FP8 | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme", "null is"),
    (compressed("tensor", format="pack-quantized"), "format", "'float-quantized' is"),
    (compressed("tensor", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme", "null is"),
    (compressed("tensor", transform_config={"a": 1}), "transform_config", "is not supported"),
    (compressed("tensor", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config", "dense"),
    (compressed("tensor", config_groups={}), "config_groups", "not an object of groups"),
    (compressed("tensor", config_groups={"a": {"weights": None}}), "config_groups.a.weights", "is not an object"),
    (compressed("group"), "config_groups.group_0.weights.strategy", "is not supported"),
    (compressed("block"), "config_groups.group_0.weights.block_structure", "does not go with strategy"),
    (compressed("tensor", [4, 4]), "config_groups.group_0.weights.block_structure", "does not go with"),
]


@pytest.mark.parametrize(("settings", "where", "said"), REFUSED)
def test_a_setting_that_is_not_obeyed_is_refused_by_name(tmp_path: Path, settings: Any, where: str, said: str) -> None:
    stored = {"norm.weight": torch.ones(4)}
    Written(tmp_path, stored, {}, {"model_type": "other", "quantization_config": settings}).save()
    with pytest.raises(FormatError, match=said) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.where.removeprefix("quantization_config.") == where


@pytest.mark.parametrize(
    "settings",
    [
        None,
        GPTQ | {"dynamic": {"-:.*down.*": {}}, "is_marlin_format": False, "damp_percent": 0.1, "meta": {"uri": "x"}},
        AWQ | {"modules_to_not_convert": ["lm_head"], "backend": "autoawq", "do_fuse": False, "exllama_config": None},
        BLOCKS | {"scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head"], "ignored_layers": None},
        compressed("tensor", sparsity_config={"format": "dense"}, transform_config={}),
    ],
)
def test_settings_that_say_nothing_of_the_values_are_let_through(tmp_path: Path, settings: Any) -> None:
    stored = {"norm.weight": torch.ones(4)}
    Written(tmp_path, stored, {}, {"model_type": "other", "quantization_config": settings}).save()
    assert open_checkpoint(tmp_path).names == ("norm.weight",)
