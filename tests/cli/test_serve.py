"""`asyncpage serve` as a process: it gets ready, answers, and leaves as it is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from asyncpage.cli.main import main

CACHE_VARIABLE = "ASYNCPAGE_CACHE"
SMALL = ("--kv-cache-bytes", "64MiB", "--cpu-threads", "1", "--max-num-seqs", "4", "--log-level", "warning")


@dataclass
class Serving:
    """A running server: its process, its address, and the service manager's socket."""

    process: subprocess.Popen[str]
    url: str
    manager: socket.socket

    def ends_with(self) -> int:
        return self.process.wait(60)


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Serving]:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        (folder / "stderr").open("w") as stderr,
    ):
        manager.bind(str(folder / "notify"))
        manager.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncpage", "serve", "--port", "0", *SMALL, *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**_environment(), "NOTIFY_SOCKET": str(folder / "notify")},
        )
        assert process.stdout is not None
        with process:
            try:
                line = process.stdout.readline()
                found = re.fullmatch(r"asyncpage ready at (http://127\.0\.0\.1:\d+) \(open it in a browser\)\n", line)
                assert found, f"{line!r}; {(folder / 'stderr').read_text()}"
                yield Serving(process, found[1], manager)
            finally:
                process.kill()


def _environment() -> dict[str, str]:
    """This process's environment without settings that would change the server's."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("ASYNCPAGE_") or name == CACHE_VARIABLE
    }


def completion(tokens: int) -> dict[str, object]:
    return {"prompt": "The sea", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}


def tokens_of(lines: Iterator[str]) -> tuple[int, list[str]]:
    """How many events carried text, and the events that did not."""
    texts, others = 0, []
    for line in lines:
        if line.startswith("data: {") and "error" not in json.loads(line[6:]):
            texts += 1
        elif line.startswith("data: "):
            others.append(line[6:])
    return texts, others


def test_it_tells_that_it_is_ready_answers_and_finishes_its_answer_when_told_to_end(
    tmp_path: Path, demo_model: Path
) -> None:
    with serving(tmp_path) as server:
        assert server.manager.recv(99) == b"READY=1"
        assert httpx.get(server.url + "/health").status_code == 200
        with httpx.stream("POST", server.url + "/v1/completions", json=completion(24), timeout=60) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert server.manager.recv(99) == b"STOPPING=1"
            texts, others = tokens_of(lines)
        assert first.startswith("data: {")
        assert texts >= 1
        assert others == ["[DONE]"]
        assert server.ends_with() == 0
    assert (tmp_path / "stderr").read_text().endswith("asyncpage: stopped\n")


def test_a_second_signal_ends_a_running_answer_with_an_error(tmp_path: Path, demo_model: Path) -> None:
    with serving(tmp_path) as server:
        with httpx.stream("POST", server.url + "/v1/completions", json=completion(800), timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert server.manager.recv(99) == b"READY=1"
            assert server.manager.recv(99) == b"STOPPING=1"
            server.process.send_signal(signal.SIGTERM)
            _, others = tokens_of(lines)
        assert "error" in json.loads(others[0])
        assert server.ends_with() == 0


def test_a_busy_port_is_told_in_one_line_before_the_model_loads(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"asyncpage: port {port} of 127.0.0.1 is busy")


def test_generate_prints_the_same_greedy_text_alone_and_beside_another(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--temperature", "0", "--max-tokens", "8", *SMALL[:-2]]
    assert main(["generate", "The sea", *flags]) == 0
    alone = capsys.readouterr().out
    assert main(["generate", "The sea", "Once upon a time", "--json", *flags]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert alone == first["text"] + "\n"
    assert (first["completion_tokens"], second["completion_tokens"]) == (8, 8)
    assert first["finish_reason"] == "length"
