"""A whole comparison of two small servers that speak the API: who is asked what, in which order, and what is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncpage.cli.peers import comparison
from asyncpage.cli.peers.comparison import Contestant, Rules, compare
from asyncpage.cli.peers.engine import PEERS, NotInstalled, Peer, check, install, own_command
from asyncpage.cli.peers.workload import SHARED, SINGLE, ExactText, WorkloadFailed

ROOT = Path(__file__).resolve().parents[3]

# Answers with as many chunks as were asked for; a word is a token. Its words: port, a file for the prompts, tokens that
# it leaves out.
PROGRAM = """
import http.server, json, sys
port, kept, fewer = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def log_message(self, *_):
        pass
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(kept, "a") as file:
            print(body["prompt"], file=file)
        self.send_response(200)
        self.end_headers()
        count = body["max_tokens"] - (fewer if body.get("stream") and body["max_tokens"] > 4 else 0)
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": count}
        for event in [{"choices": [{"text": "x"}]}] * count + [{"choices": [], "usage": usage}, None]:
            data = "[DONE]" if event is None else json.dumps(event)
            self.wfile.write(f"data: {data}\\n\\n".encode())
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Words:
    """A tokenizer to whom a word is a token."""

    def encode(self, text: str, add_special: bool) -> list[int]:
        return [0] * len(text.split())


TEXT = ExactText(Words())  # type: ignore[arg-type]


def contestant(name: str, port: int, folder: Path, fewer: int = 0) -> Contestant:
    command = (sys.executable, "-c", PROGRAM, str(port), str(folder / name), str(fewer))
    return Contestant(name, name.title(), command, f"http://127.0.0.1:{port}", 60.0)


def rules(folder: Path, most_other: float = 1000.0) -> Rules:
    return Rules((SINGLE, SHARED), runs=2, most_other=most_other, retries=1, nice=0, logs=folder)


async def test_every_server_gets_the_same_prompts_each_once_and_the_order_turns_round(
    tmp_path: Path, unused_tcp_port_factory: object
) -> None:
    ports = [unused_tcp_port_factory() for _ in range(2)]  # type: ignore[operator]
    pair = [contestant(name, port, tmp_path) for name, port in zip(("one", "two"), ports, strict=True)]
    said: list[str] = []
    measured = await compare(pair, rules(tmp_path), TEXT, time.monotonic, said.append)
    kept = {(one.server, one.run, one.row): one.value for one in measured}
    rows = ("start", "single", "shared", "rss")
    assert set(kept) == {(name, run, row) for name in ("one", "two") for run in (1, 2) for row in rows}
    assert all(value > 0 for value in kept.values())
    assert kept["one", 1, "rss"] < 1.0  # gigabytes
    order = [text for text in said if text.startswith("run ")]
    assert order == ["run 1 of 2, One", "run 1 of 2, Two", "run 2 of 2, Two", "run 2 of 2, One"]
    prompts = {name: (tmp_path / name).read_text().splitlines() for name in ("one", "two")}
    drawn = {name: [text for text in texts if len(text.split()) > 24] for name, texts in prompts.items()}
    assert sorted(drawn["one"]) == sorted(drawn["two"])  # those in flight together come in any order
    assert len(set(drawn["one"])) == len(drawn["one"]) == 2 * (3 + 32)


async def test_a_disturbed_workload_is_tried_again_with_other_prompts_and_kept_as_disturbed(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_PAUSE_S", 0.0)
    one = contestant("one", unused_tcp_port, tmp_path)
    said: list[str] = []
    measured = await compare([one], rules(tmp_path, most_other=-1.0), TEXT, time.monotonic, said.append)
    assert sum("once more" in text for text in said) == 4  # two workloads, two runs
    assert all(one.other_cores > -1.0 for one in measured)
    texts = [text for text in (tmp_path / "one").read_text().splitlines() if len(text.split()) > 24]
    assert len(set(texts)) == len(texts) == 2 * 2 * (3 + 32)


async def test_an_answer_that_is_too_short_ends_it(tmp_path: Path, unused_tcp_port: int) -> None:
    one = contestant("one", unused_tcp_port, tmp_path, fewer=1)
    with pytest.raises(WorkloadFailed, match="127 tokens, 128 were asked for"):
        await compare([one], rules(tmp_path), TEXT, time.monotonic, lambda text: None)


def test_commands_name_the_file_the_port_and_the_threads() -> None:
    for peer in PEERS.values():
        words = peer.command(Path("/env/python"), ROOT / "scripts" / "peers", Path("/m.gguf"), 8123, 2)
        assert words[0] == "/env/python"
        assert "/m.gguf" in words
        assert "8123" in words
        assert not peer.program or (ROOT / "scripts" / "peers" / peer.program).is_file()
    own = own_command(Path("/m.gguf"), 8123, 2, ("--weights-dtype", "stored"))
    assert own[1:5] == ("-m", "asyncpage", "serve", "/m.gguf")
    assert own[-2:] == ("--weights-dtype", "stored")


def test_a_peer_that_cannot_be_had_says_why_and_what_to_do(tmp_path: Path) -> None:
    check(Peer("p", "P", (), "import json", ()), Path(sys.executable))
    with pytest.raises(NotInstalled, match=r"P cannot be installed here: .*no_such_module.*--python p=PATH"):
        check(Peer("p", "P", (), "import no_such_module", ()), Path(sys.executable))
    nowhere = Peer("p", "P", ("nowhere-1.0-py3-none-any.whl",), "import json", ())
    with pytest.raises(NotInstalled, match="ERROR"):
        install(nowhere, tmp_path, lambda text: None)
    assert not any(entry.is_dir() for entry in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--peers", "nobody"], "--peers knows llamacpp, openvino, vllm; got 'nobody'"),
        (["--workloads", ","], "--workloads names none of single"),
        (["--runs", "0"], "--runs and --threads must be at least 1"),
        (["--model", "no-such-file.gguf"], "no-such-file"),
    ],
)
def test_the_script_refuses_what_it_cannot_do_before_it_starts(words: list[str], reason: str) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "compare_peers"), *words]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
