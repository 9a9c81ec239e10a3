"""A folder checkpoint gives back what transformers saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from asyncpage.errors import FormatError, ModelError
from asyncpage.weights.checkpoint import open_checkpoint
from asyncpage.weights.folder_checkpoint import STAGING_BYTES

Llama = Callable[..., LlamaForCausalLM]


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_in_the_type_asked_for(
    llama: Llama, tmp_path: Path, stored: torch.dtype, dtype: torch.dtype
) -> None:
    model = llama().to(stored)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    original = dict(model.named_parameters())
    assert set(checkpoint.names) == set(original)
    for name, parameter in original.items():
        assert torch.equal(checkpoint.tensor(name, dtype), parameter.to(dtype)), name
    checkpoint.close()


def test_shards_are_one_checkpoint(llama: Llama, tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    checkpoint = open_checkpoint(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(checkpoint.tensor(name, torch.float32), parameter), name


def test_a_tensor_larger_than_the_staging_buffer_is_whole(tmp_path: Path) -> None:
    values = torch.randn(3, STAGING_BYTES // 4)
    save_file({"large": values, "scalar": torch.tensor(2.0)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    checkpoint = open_checkpoint(tmp_path)
    assert torch.equal(checkpoint.tensor("large", torch.bfloat16), values.bfloat16())
    assert torch.equal(checkpoint.tensor("scalar", torch.float16), torch.tensor(2.0).half())


def test_settings_are_those_of_the_original(llama: Llama, tmp_path: Path) -> None:
    model = llama(rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0})
    model.save_pretrained(tmp_path)
    config = open_checkpoint(tmp_path).config
    for name in ("vocab_size", "hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        assert config[name] == getattr(model.config, name)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_parameters"] == {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}


@pytest.mark.parametrize(("head", "tied"), [(True, None), (False, True)])
def test_without_a_head_of_its_own_a_model_that_says_nothing_of_tying_is_tied(
    tmp_path: Path, head: bool, tied: bool | None
) -> None:
    tensors = {"model.norm.weight": torch.ones(4)} | ({"lm_head.weight": torch.ones(4)} if head else {})
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    assert open_checkpoint(tmp_path).config.get("tie_word_embeddings") is tied


def test_more_layers_than_tensors_are_refused_before_anything_is_made_of_them(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "other", "num_hidden_layers": 10000000}')
    with pytest.raises(FormatError, match="10000000 layers need more tensors than the 1 in the folder"):
        open_checkpoint(tmp_path)


def test_a_tensor_of_another_type_is_refused_when_asked_for(tmp_path: Path) -> None:
    save_file({"counts": torch.arange(4), "norm": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="tensor 'counts' has dtype I64; weights are read from F32, F16, BF16"):
        checkpoint.tensor("counts", torch.float32)
    with pytest.raises(ModelError, match="has no tensor 'nothing'"):
        checkpoint.tensor("nothing", torch.float32)


def test_a_folder_that_lacks_something_is_refused(llama: Llama, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"[1]", "is a JSON list"),
        (b'{"model_type": "a", "model_type": "b"}', "'model_type' is there twice"),
        (b"\xff", "not valid UTF-8"),
        (b'{"a":' * 5_000, "nested too deeply"),
        (b'{"a":' * 100_000, "has more than 10000 objects and lists"),
    ],
)
def test_a_malformed_config_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(FormatError) as caught:
        open_checkpoint(tmp_path)
    assert said in str(caught.value)


def test_a_bare_weights_file_is_refused(tmp_path: Path) -> None:
    save_file({"norm": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"give the folder with its config\.json"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_a_changed_config_changes_the_fingerprint(llama: Llama, tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    before = open_checkpoint(tmp_path).fingerprint
    assert open_checkpoint(tmp_path).fingerprint == before
    config: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert open_checkpoint(tmp_path).fingerprint != before
