"""Tiny random models by transformers, and the same weights in ours, through paged caches and through the runner.

Every family's tests make theirs here: `tiny` and `ours`, then `check_mixed_steps` for a model and `check_saved` for a
folder of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.runner import load_runner
from asyncpage.messages import EMPTY, Load, NewRow, RequestId, Step
from asyncpage.models.model import Model
from asyncpage.models.parameter import Adapt
from asyncpage.models.registry import build_model, outline_model

Variants = Mapping[str, Mapping[str, Any]]

VOCABULARY, CONTEXT, BLOCK_SIZE = 199, 128, 4
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(
    config: type[PreTrainedConfig],
    model: type[PreTrainedModel],
    changes: Mapping[str, Any],
    *,
    norm: float = 1.0,
    seed: int = 0,
) -> Any:
    """A random model of transformers. `norm`: about what its norms' weights are, which begin as one number."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about its settings
        oracle = model(config(**{**TINY, **changes})).float().eval()
    for name, parameter in oracle.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, norm if "norm" in name else 0.0, 0.3)
    return oracle


def config_of(oracle: Any) -> dict[str, Any]:
    """What its config.json would say."""
    return {**oracle.config.to_dict(), "architectures": [type(oracle).__name__]}


def ours(oracle: Any, dtype: torch.dtype = torch.float32, adapt: Adapt | None = None, **changes: Any) -> Model:
    """Our model of the same weights, from config.json's words and tensors by name."""
    tensors = revert_weight_conversion(oracle, oracle.state_dict())  # by the names that a saved one would have
    config = {**config_of(oracle), **changes}
    return build_model(config, tensors.__getitem__, dtype, "cpu", adapt=adapt, names=tuple(tensors))


def prompts(*lengths: int, seed: int = 3) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=random).tolist() for length in lengths]


def truth(oracle: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of every position."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([tokens])).logits[0]
    return logits


def check(oracle: Any, sequences: Sequence[Any]) -> None:
    for sequence in sequences:
        assert sequence.computed == len(sequence.tokens)
        error = (torch.stack(sequence.logits) - truth(oracle, sequence.tokens)).abs().max()
        assert error < 1e-4


def check_mixed_steps(oracle: Any, paged_model: Any, backend: str, **changes: Any) -> None:
    """Whole prompts, chunks and decodes in mixed steps give transformers' logits; the outline tells the true size."""
    model = ours(oracle, **changes)
    with torch.inference_mode():
        runner = paged_model(model, backend)
        whole, chunked, decoded, late = (runner.add(tokens) for tokens in prompts(41, 37, 24, 6))
        runner.step((whole, 33), (chunked, 11), (decoded, 16))
        runner.step((whole, 1), (chunked, 11), (decoded, 1))
        runner.step((decoded, 1), (late, 3), (chunked, 14), (whole, 1))
        runner.step((late, 1), (decoded, 1), (whole, 1), (chunked, 1))
        while whole.computed < 41:
            live = [one for one in (late, whole, decoded) if one.computed < len(one.tokens)]
            runner.step(*((one, 1) for one in live))
    check(oracle, [whole, chunked, decoded, late])
    outline = outline_model({**config_of(oracle), **changes}, torch.bfloat16)
    assert outline.weight_bytes == 2 * oracle.num_parameters()
    for name in ("groups", "layer_groups", "layer_slots", "max_model_len", "vocab_size", "hidden_size"):
        assert getattr(outline.model, name) == getattr(model, name)


def check_saved(oracle: Any, folder: Path, **settings: Any) -> None:
    """A saved folder, loaded by the executor's runner, gives transformers' greedy tokens to a chunked prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        oracle.save_pretrained(folder)
    (prompt,), outputs = prompts(23), 12
    expected = list(prompt)
    while len(expected) < len(prompt) + outputs:
        expected.append(int(truth(oracle, expected)[-1].argmax()))
    load = {
        "model_path": str(folder), "dtype": "float32", "kv_cache_dtype": "auto", "device": "cpu",
        "max_model_len": None, "max_num_seqs": 2, "max_num_batched_tokens": 32, "block_size": BLOCK_SIZE,
        "kv_cache_bytes": None, "num_kv_blocks": 400, "attention_backend": "cpu", "grammar_backend": "builtin",
        "cpu_threads": 1, "seed": 0,
    }  # fmt: skip
    runner = load_runner(Load({**load, **settings}))
    needed = -(-len(expected) // BLOCK_SIZE)
    tables = np.random.default_rng(4).permutation(np.arange(1, 400, dtype=np.int32))
    groups = len(runner.handshake.groups)
    row = NewRow(
        0,
        RequestId(1),
        np.array(prompt, dtype=np.int32).tobytes(),
        len(prompt),
        0,
        tuple(tables[group * needed : (group + 1) * needed].tobytes() for group in range(groups)),
        SamplingParams(temperature=0.0),
        0,
    )
    tokens: list[int] = []
    counts = [14, len(prompt) - 14, *[1] * (outputs - 1)]
    for number, count in enumerate(counts):
        step = np.array([0], dtype=np.int32), np.array([count], dtype=np.int32)
        done = runner.execute(Step(number + 1, 1, *step, EMPTY, () if number else (row,)))
        tokens += done.tokens.tolist()
    runner.close()
    assert tokens == expected[len(prompt) :]
