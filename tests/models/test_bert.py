"""The BERT shape against transformers on random weights: alone, in mixed batches, and what is not run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig as OracleConfig
from transformers import BertModel as OracleModel

from asyncpage.errors import ModelError
from asyncpage.models.encoder import Encoder
from asyncpage.models.registry import build_encoder, is_encoder, outline_encoder

CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
}


@pytest.fixture(scope="module")
def oracle() -> OracleModel:
    torch.manual_seed(3)
    names = CONFIG.keys() - {"architectures", "model_type"}
    config = OracleConfig(**{name: CONFIG[name] for name in names}, initializer_range=0.3, attn_implementation="eager")
    model = OracleModel(config, add_pooling_layer=False).eval()
    for name, tensor in model.named_parameters():
        if "bias" in name or "LayerNorm" in name:  # which begin as zeros and ones
            tensor.data += 0.3 * torch.randn(tensor.shape)
    return model


@pytest.fixture(scope="module")
def model(oracle: OracleModel) -> Encoder:
    tensors = dict(oracle.state_dict())
    return build_encoder(CONFIG, tensors.__getitem__, torch.float32, "cpu")


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_states_are_transformers_whatever_lies_beside(
    model: Encoder, oracle: OracleModel, lengths: list[int], seed: int
) -> None:
    tokens = torch.randint(0, 97, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        states = torch.split(model.encode(tokens, lengths), lengths)
        for prompt, found in zip(torch.split(tokens, lengths), states, strict=True):
            torch.testing.assert_close(found, oracle(prompt[None]).last_hidden_state[0], atol=2e-5, rtol=1e-5)


def test_sizes_are_told(model: Encoder) -> None:
    assert (model.vocab_size, model.hidden_size, model.max_model_len) == (97, 48, 40)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act 'gelu_new' is not supported by this model type; 'gelu' is"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True"),
        ({"add_cross_attention": True}, "add_cross_attention True"),
        ({"num_attention_heads": 5}, r"hidden_size \(48\) is no multiple of num_attention_heads \(5\)"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps must be a small positive number"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": 98}, r"embeddings.word_embeddings.weight has shape \[97, 48\]"),
    ],
    ids=str,
)
def test_what_would_change_the_states_is_refused_by_name(
    oracle: OracleModel, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        build_encoder({**CONFIG, **changes}, dict(oracle.state_dict()).__getitem__, torch.float32, "cpu")


def test_an_encoder_is_known_by_its_model_type_and_one_with_another_head_is_refused() -> None:
    assert is_encoder(CONFIG)
    assert is_encoder({"model_type": "bert"})
    assert not is_encoder({"model_type": "llama"})
    other = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    with pytest.raises(
        ModelError,
        match=r"BertForSequenceClassification of model type 'bert' is not supported; .*LlamaForCausalLM.*BertModel",
    ):
        is_encoder(other)


def test_its_outline_counts_the_weights_without_reading_any(oracle: OracleModel) -> None:
    outline = outline_encoder(CONFIG, torch.bfloat16)
    assert outline.weight_bytes == 2 * oracle.num_parameters()
    assert (outline.model.vocab_size, outline.model.hidden_size, outline.model.max_model_len) == (97, 48, 40)
