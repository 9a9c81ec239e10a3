"""`asyncpage doctor --model`: the operators of a step as a table and as data, and what it says when it cannot run."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from asyncpage.cli.main import main
from asyncpage.executor import runner
from asyncpage.machine import Memory
from tests.weights.tiny_models import MODELS


def save(model: Any, folder: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        model.save_pretrained(folder)
    return str(folder)


def rows(text: str) -> list[str]:
    """The first column of the table."""
    table = text.split("\noperator", 1)[1].split("\n\n", 1)[0]
    return [line.strip().split("  ")[0] for line in table.splitlines()[1:]]


def test_a_model_is_printed_as_its_operators_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    oracle = MODELS["gemma2"]()
    folder = save(oracle, tmp_path)
    capsys.readouterr()  # what that library writes
    assert main(["doctor", "--model", folder, "--no-run", "--context", "40"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    softcap = oracle.config.attn_logit_softcapping
    assert oracle.config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    layer = [
        "input norm", "q/k/v projection", "rope", "write_kv", "attention", "output projection", "norm behind attention",
        "residual", "norm before feed-forward", "gate/up projection", "activation", "down projection",
        "norm behind feed-forward",
    ]  # fmt: skip
    assert [row.split(" (")[0] for row in rows(out)] == [
        "once a step", "embed", "rope angles", "layers 0, 2", *layer, "layer 1", *layer, "once a step", "final norm",
        "lm_head", "widen or cap logits", "sampling",
    ]  # fmt: skip
    assert f"attention (mha, 6 heads over 2, window {oracle.config.sliding_window}, soft cap {softcap:g})" in out
    assert f"attention (mha, 6 heads over 2, soft cap {softcap:g})" in out
    assert f"weights    {oracle.num_parameters():,} in the model" in out
    assert re.search(r"\n-> gate/up projection reads \d\d% of a step's bytes\n", out)


def test_a_run_tells_where_the_time_of_a_step_goes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    oracle = MODELS["qwen3moe"]()
    folder = save(oracle, tmp_path)
    assert main(["doctor", "--model", folder, "--json", "--context", "20", "--rows", "2"]) == 0
    out, err = capsys.readouterr()
    assert "loading 0 million weights" in err
    assert "100%" in err
    found = json.loads(out)
    assert {finding["name"] for finding in found["findings"]} >= {"python", "model", "weights"}
    step = found["step"]
    assert step["totals"]["weights"] == step["totals"]["weights_listed"] == oracle.num_parameters()
    (layers,) = [block for block in step["blocks"] if block["layers"]]
    assert layers["layers"] == [0, 1]
    experts = next(one for one in layers["operators"] if one["name"] == "experts: gate/up projection")
    assert (experts["used"], experts["parts"], experts["stored_as"]) == (2, 5, ["F32"])
    decode = step["times"]["decode"]
    assert decode["rows"] == 2
    assert sum(decode["us"].values()) + decode["rest_us"] == pytest.approx(decode["total_us"])
    assert step["totals"]["flops"] == sum(
        max(1, len(block["layers"])) * one["flops"] for block in step["blocks"] for one in block["operators"]
    )


def test_an_encoder_is_listed_and_measured_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch.manual_seed(2)
    sizes = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4}
    folder = save(BertModel(BertConfig(**sizes, num_hidden_layers=2, max_position_embeddings=64)), tmp_path)
    assert main(["doctor", "--model", folder]) == 0
    out = capsys.readouterr().out
    assert "an encoder: one prompt of 64 tokens, all of it at once" in out
    assert [row for row in rows(out) if "layers" in row] == ["layers 0-1 (2 times)"]
    attention = next(line for line in out.splitlines() if "attention, activation, residual" in line)
    assert " 0.0%" not in attention


def test_a_model_that_does_not_fit_is_listed_with_why_it_was_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(MODELS["llama"](), tmp_path)
    monkeypatch.setattr(runner, "read_memory", lambda: Memory(total=1 << 30, available=1 << 20, limit=None))
    assert main(["doctor", "--model", folder]) == 0
    out = capsys.readouterr().out
    assert "warning  not measured: too little memory" in out
    assert "q/k/v projection" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rows", "0", "--model", "demo"], "--rows must be 1 or more, got 0"),
        (["--context", "-3", "--model", "demo"], "--context must be 1 or more, got -3"),
        (["--no-run"], "--no-run is about a model's step; name the model, too: --model demo"),
        (["--dtype", "bfloat16"], "--dtype is about a model's step; name the model, too: --model demo"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert text in capsys.readouterr().err
