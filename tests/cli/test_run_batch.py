"""`asyncpage run-batch` as it is typed: what it refuses, and a batch that is interrupted and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpage.cli.main import main

SMALL = ("--kv-cache-bytes", "64MiB", "--cpu-threads", "1", "--max-num-seqs", "2")
TOKENS = 4


def write_requests(path: Path, count: int) -> None:
    body = {"prompt": "The sea", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": {**body, "seed": number}}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "-i FILE is needed"),
        (("-i", "in.jsonl"), "-o FILE is needed"),
        (("-i", "none.jsonl", "-o", "out.jsonl"), "none.jsonl cannot be read"),
        (("-i", "in.jsonl", "-o", "in.jsonl"), "are the same file"),
        (("-i", "in.jsonl", "-o", "out.jsonl", "--concurrency", "0"), "--concurrency must be at least 1"),
        (("-i", "broken.jsonl", "-o", "out.jsonl"), "line 1 is not JSON"),
        (("-i", "in.jsonl", "-o", "notes.txt"), "choose another -o"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_loaded(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    demo_model: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_requests(tmp_path / "in.jsonl", 1)
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "notes.txt").write_text("mine\n")
    assert main(["run-batch", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine\n"


def test_a_batch_that_is_interrupted_goes_on_where_it_ended(
    tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_requests(source, 10)
    command = ["run-batch", "-i", str(source), "-o", str(target), *SMALL]
    with subprocess.Popen([sys.executable, "-m", "asyncpage", *command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = [next(line for line in process.stderr if "answering 10%" in line)]
            process.send_signal(signal.SIGINT)
            said += process.stderr
        finally:
            process.kill()
    assert process.returncode == 1
    assert "the same command goes on with the others" in said[-1]
    before = target.read_bytes()
    answered = before.count(b"\n")
    assert 1 <= answered < 10
    target.write_bytes(before + b'{"id": "batch_req_')  # as if it had been killed in the middle of a line
    assert main(command) == 0
    told = capsys.readouterr().err
    assert "was cut off" in told
    assert f"{answered} of 10 requests are answered" in told
    assert f"{10 - answered} requests answered, 0 of them with an error" in told
    assert target.read_bytes().startswith(before)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"r{number}" for number in range(10))
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in lines} == {TOKENS}
    assert len({line["response"]["body"]["choices"][0]["text"] for line in lines}) == 1  # greedy
    assert main(command) == 0  # nothing is left, so nothing is loaded
    assert "0 are left" in capsys.readouterr().err
