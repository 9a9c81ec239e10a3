"""The script that trains a draft head, and the engine with what it has written: from nothing to drafts that stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600, env=environment)


@pytest.mark.long
def test_a_head_of_a_minutes_training_drafts_for_the_demo_and_changes_no_token(
    demo_model: Path, tmp_path: Path
) -> None:
    script, head = str(ROOT / "scripts/train_draft_head"), str(tmp_path / "head")
    trained = run(script, "--model", str(demo_model), "--out", head, "--minutes", "1", "--texts-at-once", "16")
    assert trained.returncode == 0, trained.stderr
    assert f"written to {head}" in trained.stdout
    kind = ("--speculation", "head", "--draft-head", head, "--ngram-min", "0")
    few = ("--text", "chat", "--max-tokens", "48", "--rounds", "1", "--json")
    measured = run("-m", "asyncpage", "bench", "speculation", "--model", str(demo_model), *kind, *few)
    assert measured.returncode == 0, measured.stderr
    result = json.loads(measured.stdout)
    assert result["same_tokens"]
    assert result["acceptance"] > 0.1


def test_the_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for words, expected in (
        (("--out", str(taken)), "taken"),
        (("--minutes", "0"), "--minutes must be more than 0, got 0"),
        (("--model", str(tmp_path / "none.gguf")), "none.gguf"),
    ):
        refused = run(str(ROOT / "scripts/train_draft_head"), "--out", str(tmp_path / "head"), *words)
        assert refused.returncode == 2
        assert refused.stderr.startswith("train_draft_head: ")
        assert refused.stderr.count("\n") == 1
        assert expected in refused.stderr
