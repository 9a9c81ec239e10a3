"""What does not run through the transformers library is refused by name, for its config, tensors or what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.granite import modeling_granite

from asyncpage.errors import ModelError, UsageError
from asyncpage.models import registry
from asyncpage.models.registry import build_model, find_family, outline_model
from tests.models.tiny import check_saved, config_of, tiny

Change = Callable[[dict[str, Tensor]], None]


def granite(**changes: Any) -> Any:
    return tiny(transformers.GraniteConfig, transformers.GraniteForCausalLM, changes)


def of(model_type: str, **changes: Any) -> dict[str, Any]:
    """A config as its files have it, with what the library takes for the rest."""
    return {"model_type": model_type, "vocab_size": 199, **changes}


def build(change: Change = lambda tensors: None, **changes: Any) -> Any:
    model = granite()
    tensors = dict(model.state_dict())
    change(tensors)
    config = config_of(model) | changes
    return build_model(config, tensors.__getitem__, torch.float32, "cpu", names=tuple(tensors))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (of("whale"), r"transformers \d.* has no causal language model of this type either$"),
        (of("whale", auto_map={"AutoModelForCausalLM": "whale.Whale"}), "code that a model brings along is never run"),
        (of("t5"), "has no causal language model of this type either"),
        (of("granite", architectures=["GraniteForTokenClassification"]), "runs GraniteForCausalLM of this type"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_what_the_library_does_not_have_is_refused_with_what_is_served(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        find_family(config)
    assert "is not supported; supported are LlamaForCausalLM, " in str(caught.value)


def test_without_the_extra_it_is_said_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"; pip install 'asyncpage\[transformers\]' may run it$"):
        find_family(of("granite"))


def test_another_version_than_the_extras_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpage.models.transformers_family", None)
    with pytest.raises(ModelError, match=r"; pip install 'asyncpage\[transformers\]' may run it, what is installed"):
        find_family(of("granite"))


def test_a_model_type_that_has_a_family_never_goes_to_the_library() -> None:
    with pytest.raises(ModelError, match="LlamaForTokens of model type 'llama' is not supported") as caught:
        find_family(of("llama", architectures=["LlamaForTokens"]))
    assert "transformers" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (of("mamba"), "MambaForCausalLM cannot run through transformers .*: it keeps a state of its own"),
        (of("rwkv"), "it keeps a state of its own beside keys and values"),
        (of("lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"]), "it has layers of conv; full_att"),
        (of("bloom"), "its attention cannot be replaced"),
        (of("stablelm"), "its attention cannot be replaced"),
        (of("roberta"), "has a mask that is neither causal nor a causal window"),
        (of("bart"), "BartForCausalLM cannot run .*: it attends to an encoder"),
        (of("doge", num_hidden_layers=1), "layer 0 has a mask of its own"),
        (of("diffllama", num_hidden_layers=1), "layer 0 attends twice"),
        (of("fuyu"), "it is put together of several models"),
        (of("granite", auto_map={"AutoModelForCausalLM": "m.M"}), "remove auto_map from config.json"),
        (of("granite", fusion_config={"moe": True}), "fusion_config is not supported"),
        (of("granite", is_causal=False, num_hidden_layers=1), "layer 0 gives attention is_causal"),
        (of("gpt2", n_layer=1 << 20), "1048576 layers are more than any model has"),
        (of("granite", is_encoder_decoder=True), "it attends to an encoder"),
        (of("granite", max_position_embeddings=None), "max_position_embeddings.* expected int"),
        (
            of("granite", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "rope scaling 'dynamic' is not supported",
        ),
        (
            of("granite", rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}),
            "config: rope type 'spiral' is not supported",
        ),
        (of("granite", hidden_act="spiral"), "cannot run through transformers .*: KeyError: .*spiral"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value)[:30],
)
def test_what_its_config_asks_for_and_is_not_run_is_refused_before_a_tensor_is_read(
    config: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelError, match=text):
        outline_model(config, torch.float32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda of: of.pop("model.layers.1.mlp.up_proj.weight"),
            r"tensor model.layers.1.mlp.up_proj.weight is missing",
        ),
        (lambda of: of.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(48)}), r"q_proj.bias is not of this"),
        (
            lambda of: of.update({"a": torch.ones(1), "b": torch.ones(1)}),
            r"tensor a and 1 others are not of this model",
        ),
        (
            lambda of: of.update({"model.norm.weight": torch.ones(47)}),
            r"model\.norm\.weight has shape \[47\], the config asks for \[48\]",
        ),
        (lambda of: of.update({"model.norm.weight": torch.full((48,), torch.nan)}), "apart by nan of their spread"),
    ],
    ids=["missing", "left over", "two left over", "of another shape", "no numbers"],
)
def test_tensors_that_are_not_the_models_are_refused_by_name(change: Change, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        build(change)


def test_an_argument_of_attention_that_is_not_known_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_granite.GraniteAttention.forward

    def asking(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs, position_bias=torch.zeros(1))

    monkeypatch.setattr(modeling_granite.GraniteAttention, "forward", asking)
    with pytest.raises(ModelError, match="layer 0 gives attention position_bias, which is not obeyed"):
        outline_model(config_of(granite()), torch.float32)


def test_a_model_that_counts_positions_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = modeling_granite.GraniteRotaryEmbedding.forward

    def counting(self: Any, x: Tensor, position_ids: Tensor) -> Any:
        return turn(self, x, torch.arange(x.shape[1])[None])

    monkeypatch.setattr(modeling_granite.GraniteRotaryEmbedding, "forward", counting)
    with pytest.raises(ModelError, match="its logits are others than with its own attention"):
        build()


def test_a_model_in_which_tokens_meet_outside_of_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_granite.GraniteMLP.forward

    def mixing(self: Any, x: Tensor) -> Tensor:
        return forward(self, x + 0.1 * x.roll(1, dims=1))

    monkeypatch.setattr(modeling_granite.GraniteMLP, "forward", mixing)
    with pytest.raises(ModelError, match="it does more with a sequence than it asks of attention"):
        build()


def test_a_layer_that_asks_for_something_else_in_a_step_is_refused() -> None:
    model = build()
    model._module.model.layers[1].self_attn.scaling = 0.5
    with pytest.raises(ModelError, match="layer 1 asks attention for something else than when the model was loaded"):
        model.forward(torch.tensor([5]), torch.tensor([0]), lambda layer, q, k, v: q)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": 8},
            "this model has no linear maps that adapters could change",
        ),
        ({"expert_parallel_size": 2}, "--expert-parallel-size 2 is for models with experts, and this one has none"),
        ({"weights_dtype": "bfloat16"}, "its code has no --weights-dtype beside --dtype; leave it out"),
    ],
    ids=["adapters", "ranks", "narrow weights"],
)
def test_what_families_of_our_own_can_do_alone_is_refused(settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, ModelError), match=text):
        check_saved(granite(), tmp_path, **settings)
