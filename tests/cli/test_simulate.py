"""The command line around simulations: what is printed, what is refused, and the way from a journal to a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncpage.cli.main import main

SMALL = ("--num-requests", "12", "--input-tokens", "20", "--output-tokens", "5", "--max-num-seqs", "4")


def test_a_simulation_prints_a_table_and_progress_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "random", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert "completed requests                                         12" in out
    assert "total generated tokens                                     60" in out
    for title in ("(TTFT)", "(TPOT)", "(E2EL)"):
        assert title in out
    assert "simulated 100% 12 of 12 req" in err


def test_json_holds_the_same_and_is_equal_from_run_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        assert main(["simulate", "chat", *SMALL, "--request-rate", "3", "--seed", "8", "--json"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert (found["trace"], found["completed"], found["failed"]) == ("chat", 12, 0)
    assert found["p90_e2el_ms"] >= found["median_e2el_ms"] > found["median_ttft_ms"] > 0


def test_a_trace_file_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    line = {"arrival_s": 0.0, "prompt_tokens": 48, "output_tokens": 3, "prefix_group": "a"}
    file.write_text("".join(json.dumps(line | {"arrival_s": at_s}) + "\n" for at_s in (0.0, 5.0)))
    assert main(["simulate", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["total_input_tokens"]) == (2, 96)
    assert found["total_cached_tokens"] == 47  # all of the second prompt but the token that must be computed


def test_indexes_are_compared_as_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--compare-index", "chat", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["chain", "tree"]
    assert "simulated with the tree 100%" in err
    assert main(["simulate", "--compare-index", "chat", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chain"]["dimensions"].keys() == found["tree"]["dimensions"].keys()
    assert len(found["tree"]["dimensions"]) == 6


def test_from_a_journal_to_a_latency_file_to_a_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, model = tmp_path / "run.journal", tmp_path / "mine.toml"
    load = ["--num-requests", "40", "--max-num-seqs", "4", "--output-tokens", "20", "--request-rate", "5"]
    assert main(["simulate", "random", *load, "--journal", str(journal), "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert main(["simulate", "--fit", str(journal), "--output", str(model)]) == 0
    told = capsys.readouterr().out
    assert "fitted to" in told
    assert "--max-num-seqs 4" in told
    assert main(["simulate", "random", *load, "--latency", str(model), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"):
        assert again[name] == pytest.approx(recorded[name], rel=0.03)
    assert main(["simulate", "--fit", str(journal)]) == 0
    assert capsys.readouterr().out == model.read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["chatt"], "there is no trace 'chatt': it is random, chat, agents, or a JSONL file"),
        (["--num-requests", "0"], "--num-requests must be at least 1"),
        (["--max-concurrency", "0"], "--max-concurrency must be at least 1"),
        (["--output", "x"], "--output belongs to --fit"),
        (["--fit", "none.journal"], "--fit none.journal"),
        (["--latency", "none.toml"], "--latency none.toml cannot be read"),
        (["--input-tokens", "40000"], "raise --max-model-len"),
        (["--model", "demo"], "does not know --model"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_trace_file_takes_no_shape_of_a_synthetic_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.jsonl").write_text('{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1}\n')
    assert main(["simulate", str(tmp_path / "mine.jsonl"), "--turns", "3"]) == 2
    assert "has its own times and lengths" in capsys.readouterr().err
