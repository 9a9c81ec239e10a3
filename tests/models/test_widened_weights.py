"""Weights held in fewer bits than the rows: the model of the rounded matrices, in the rows' own arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from asyncpage.errors import UsageError
from asyncpage.models.layers import WIDENED_ITEMS, WidenedLinear
from asyncpage.models.registry import build_model, outline_model
from tests.models.tiny import check, check_saved, config_of, prompts, tiny

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "untied, with biases": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "tied, with a scale": (Gemma2Config, Gemma2ForCausalLM, {"head_dim": 8, "sliding_window": 8}),
}


def rounded(oracle: Any, held: torch.dtype) -> Any:
    """Its matrices in the values that `held` has."""
    with torch.no_grad():
        for parameter in oracle.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.to(held))
    return oracle


@pytest.mark.parametrize("held", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_model_with_rounded_matrices(name: str, held: torch.dtype, paged_model: Any) -> None:
    oracle = tiny(*FAMILIES[name])
    model = build_model(config_of(oracle), oracle.state_dict().__getitem__, torch.float32, "cpu", held=held)
    with torch.inference_mode():
        runner = paged_model(model, "cpu")
        one, other = (runner.add(tokens) for tokens in prompts(17, 9))
        runner.step((one, 11))
        runner.step((one, 1), (other, 9))
        runner.step((one, 5))
    check(rounded(oracle, held), [one, other])
    matrices = sum(parameter.numel() for parameter in oracle.parameters() if parameter.ndim == 2)
    expected = 2 * matrices + 4 * (oracle.num_parameters() - matrices)
    assert outline_model(config_of(oracle), torch.float32, held=held).weight_bytes == expected


@pytest.mark.parametrize("shape", [(700, 1001), (3, 7), (2, WIDENED_ITEMS + 1)])
def test_a_map_of_any_size_is_the_widened_one(shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(2)
    # Of whole numbers this small every sum is exact, in whatever order.
    weight, bias, rows = (torch.randint(-3, 4, size, generator=random) for size in (shape, shape[:1], (3, shape[1])))
    found = WidenedLinear(weight.bfloat16(), bias.float())(rows.float())
    assert torch.equal(found.long(), rows @ weight.t() + bias)


def test_a_saved_folder_held_narrow_gives_the_tokens_of_the_rounded_model(tmp_path: Path) -> None:
    check_saved(rounded(tiny(LlamaConfig, LlamaForCausalLM, {}), torch.bfloat16), tmp_path, weights_dtype="bfloat16")


@pytest.mark.parametrize(("dtype", "held"), [("bfloat16", "float32"), ("bfloat16", "float16")])
def test_a_type_that_is_no_narrower_is_refused(dtype: str, held: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--weights-dtype {held} is for weights that take less than --dtype"):
        check_saved(tiny(LlamaConfig, LlamaForCausalLM, {}), tmp_path, dtype=dtype, weights_dtype=held)
