"""Servers of a comparison as processes, with a small one in their place: started, timed, weighed, and ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncpage.cli.peers.contention import Contention, family
from asyncpage.cli.peers.server_process import Server, ServerFailed, start

# Serves one token, from a process that has a child; refuses twice at first. Its words: port, and what it answers.
PROGRAM = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
answers = [int(word) for word in sys.argv[2:]]
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
print("it says this", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def command(port: int, *answers: int) -> Sequence[str]:
    return (sys.executable, "-c", PROGRAM, str(port), *map(str, answers))


async def served(words: Sequence[str], port: int, log: Path, limit_s: float = 60.0) -> tuple[Server, tuple[int, ...]]:
    url = f"http://127.0.0.1:{port}"
    async with start(words, url, "m", log, time.monotonic, limit_s=limit_s, nice=0) as server:
        assert server.peak_bytes() > 5_000_000  # two interpreters
        return server, family(server.pid)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_a_server_is_timed_to_its_first_token_and_ends_with_its_children(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    server, pids = await served(command(unused_tcp_port, 503, 503, 200), unused_tcp_port, tmp_path / "log")
    assert server.first_token_s > 0
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


async def test_a_server_that_ends_is_told_with_the_end_of_its_log(tmp_path: Path, unused_tcp_port: int) -> None:
    words = (sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)")
    with pytest.raises(ServerFailed, match=r"(?s)ended with 3.*no such model"):
        await served(words, unused_tcp_port, tmp_path / "log")


async def test_a_server_that_refuses_is_told_at_once(tmp_path: Path, unused_tcp_port: int) -> None:
    with pytest.raises(ServerFailed, match="answers 404"):
        await served(command(unused_tcp_port, 404), unused_tcp_port, tmp_path / "log")


async def test_a_server_that_never_serves_is_given_up(tmp_path: Path, unused_tcp_port: int) -> None:
    with pytest.raises(ServerFailed, match=r"(?s)no token in time.*it says this"):
        await served(command(unused_tcp_port, 503), unused_tcp_port, tmp_path / "log", limit_s=3.0)


def test_what_this_process_used_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # The accounts by hand: 5 s busy in 10 s, of which 2 are this process's and 1 the server's.
    accounts = iter([(100.0, {os.getpid(): 10.0, 7: 1.0}), (105.0, {os.getpid(): 12.0, 7: 2.0})])
    clock = iter([50.0, 60.0])
    state: dict[str, tuple[float, dict[int, float]]] = {}

    def busy() -> float:
        state["now"] = next(accounts)
        return state["now"][0]

    monkeypatch.setattr("asyncpage.cli.peers.contention._busy_s", busy)
    monkeypatch.setattr("asyncpage.cli.peers.contention.family", lambda pid: (pid,))
    monkeypatch.setattr(
        "asyncpage.cli.peers.contention._used_s", lambda pids: sum(state["now"][1][pid] for pid in set(pids))
    )
    watched = Contention(lambda: next(clock), 7)
    assert watched.other_cores(7) == pytest.approx((5.0 - 3.0) / 10.0)
