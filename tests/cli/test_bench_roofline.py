"""The roofline: work by hand for a model whose every weight is counted, and a model of random weights that runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from asyncpage.cli.main import main
from asyncpage.cli.random_model import Shape, write_random_model
from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.executor.roofline import Machine, Work, decode_work, prompt_work
from asyncpage.executor.step_graph import read_step_graph
from asyncpage.formats.gguf import GGUFFile
from asyncpage.house import executor_settings

HIDDEN, INTERMEDIATE, LAYERS = 256, 96, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 1, 64
SHAPE = f"{HIDDEN}x{INTERMEDIATE}x{LAYERS}"
PER_LAYER = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * HEAD_DIM + 3 * HIDDEN * INTERMEDIATE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    path = tmp_path_factory.mktemp("random") / "random.gguf"
    write_random_model(path, Shape.parse(SHAPE), demo_model, lambda *_: None)
    return path


def test_work_is_that_of_every_weight_and_of_attention(model: Path) -> None:
    settings = executor_settings(EngineConfig(model=str(model), weights_dtype="float32"), model, None, None)
    vocab = 49152
    context, rows = 100, 3
    graph = read_step_graph(settings, context)
    kv_row = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4
    norms = (2 * LAYERS + 1) * HIDDEN
    found = decode_work(graph, rows)
    # A token of the embedding is one row of it; the head reads all.
    read = 4 * (LAYERS * PER_LAYER + norms + vocab * HIDDEN)
    assert found.bytes == pytest.approx(read + rows * kv_row * (context + 1), abs=4 * HIDDEN + 1000)
    attention = LAYERS * 4 * HEADS * HEAD_DIM * context
    assert found.flops == rows * (2 * LAYERS * PER_LAYER + 2 * vocab * HIDDEN + attention)

    prompt = 200  # its tokens see 100 on average, and the last alone has logits
    work = prompt_work(graph, prompt)
    assert work.flops == prompt * (2 * LAYERS * PER_LAYER + attention) + 2 * vocab * HIDDEN
    assert work.bytes == pytest.approx(read + 2 * prompt * kv_row, abs=4 * HIDDEN + 1000)


def test_the_time_of_work_is_that_of_its_slower_side() -> None:
    machine = Machine(bytes_per_s=10.0, flops_per_s=100.0)
    assert Work(bytes=20, flops=100).least_s(machine) == 2.0
    assert Work(bytes=20, flops=500).least_s(machine) == 5.0


def test_random_weights_are_the_same_for_a_seed_and_keep_the_size_of_what_goes_through(
    model: Path, demo_model: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.gguf"
    write_random_model(again, Shape.parse(SHAPE), demo_model, lambda *_: None)
    assert again.read_bytes() == model.read_bytes()
    file = GGUFFile(model)
    through = np.random.default_rng(0).standard_normal((64, HIDDEN), dtype=np.float32)
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_up.weight", "token_embd.weight"):
        out = through @ file.dequantize(name).T
        assert out.std() == pytest.approx(1.0, abs=0.1), name
        assert abs(out.mean()) < 0.1, name
    file.close()


@pytest.mark.parametrize("shape", ["", "256x96", "255x96x1", "256x90x1", "256x96x0", "ax96x1"])
def test_a_shape_that_cannot_be_is_refused(shape: str) -> None:
    with pytest.raises(UsageError, match="hidden"):
        Shape.parse(shape)


def test_it_runs_and_tells_every_step_beside_what_it_must_do(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncpage.executor.roofline.measure_machine", lambda threads: Machine(1e10, 1e11))
    words = ["bench", "roofline", "--model", str(model), "--batches", "1,3", "--context", "32", "--prompt", "64"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["tokens"] for step in found["steps"]] == [1, 3, 64]
    for step in found["steps"]:
        least_s = max(step["bytes"] / 1e10, step["flops"] / 1e11)
        assert step["least_s"] == pytest.approx(least_s)
        assert step["share"] == pytest.approx(least_s / step["took_s"])
        assert step["bound"] == ("memory" if step["bytes"] / 1e10 >= step["flops"] / 1e11 else "arithmetic")
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "3 rows, a token each behind 31" in table
    assert "memory 10.0 GB/s" in table


def test_random_weights_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept.gguf"
    words = ["bench", "roofline", "--batches", "1", "--context", "16", "--prompt", "16"]
    assert main([*words, "--random-weights", SHAPE, "--keep", str(path)]) == 0
    assert "kept.gguf" in capsys.readouterr().out
    assert path.stat().st_size > 1_000_000
    assert main([*words, "--keep", str(path)]) == 2
    assert main([*words, "--model", "demo", "--batches", "0"]) == 2
    assert main([*words, "--model", "demo", "--prompt", "0"]) == 2
