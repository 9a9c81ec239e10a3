"""The engines that are compared: how each is installed into an environment of its own, and started.

INVARIANT: an environment that `install` returns has passed its check; one that did not is not kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncpage.errors import AsyncpageError

SERVED_NAME = "compared"
"""What requests name as their model; a server of one model may not look at it."""

_INSTALL_LIMIT_S = 1800.0
_CHECK_LIMIT_S = 120.0
_TOLD = 300  # characters of what pip or a check says


class NotInstalled(AsyncpageError):
    """A peer cannot be had here."""


@dataclass(frozen=True, slots=True)
class Peer:
    """`check`: a program that its environment must run. `program`: a file beside the script, "" for `module`.

    `words`: behind it, in which {model}, {port} and {threads} are filled in. `start_limit_s`: to its first token.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    check: str
    words: tuple[str, ...]
    program: str = ""
    module: str = ""
    start_limit_s: float = 120.0

    def command(self, python: Path, programs: Path, model: Path, port: int, threads: int) -> tuple[str, ...]:
        begin = (str(programs / self.program),) if self.program else ("-m", self.module)
        words = (word.format(model=model, port=port, threads=threads) for word in self.words)
        return (str(python), *begin, *words)


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "llamacpp",
            "llama.cpp",
            ("xllamacpp==2026.10.11549",),
            "import xllamacpp; xllamacpp.Server",
            ("{model}", "--port", "{port}", "--threads", "{threads}"),
            program="llamacpp_server.py",
        ),
        Peer(
            "openvino",
            "OpenVINO GenAI",
            ("openvino-genai==2026.4.1.0", "aiohttp>=3.14"),
            "import openvino_genai; openvino_genai.ContinuousBatchingPipeline",
            ("{model}", "--port", "{port}", "--threads", "{threads}"),
            program="openvino_server.py",
            start_limit_s=300.0,
        ),
        Peer(
            "vllm",
            "vLLM",
            ("vllm",),
            "from vllm.platforms import current_platform as here; assert here.is_cpu(), 'this build is not for CPUs'",
            ("--model", "{model}", "--port", "{port}", "--host", "127.0.0.1", "--served-model-name", SERVED_NAME),
            module="vllm.entrypoints.openai.api_server",
            start_limit_s=600.0,
        ),
    )
}


def own_command(model: Path, port: int, threads: int, words: Sequence[str]) -> tuple[str, ...]:
    """This engine, from the environment that the comparison itself runs in."""
    given = ("--port", str(port), "--cpu-threads", str(threads), "--served-model-name", SERVED_NAME)
    return (sys.executable, "-m", "asyncpage", "serve", str(model), *given, *words)


def install(peer: Peer, folder: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of the peer's environment below `folder`, which is made where it is not there yet.

    Errors: `NotInstalled` with the installer's reason.
    """
    version = "-".join(peer.requirements).replace("==", "-").replace(">=", "-")
    home = folder / f"{peer.name}-{version}"
    python = home / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    if (home / "complete").exists():
        return python
    say(f"installing {' '.join(peer.requirements)} into {home}")
    shutil.rmtree(home, ignore_errors=True)
    try:
        _do(peer, (sys.executable, "-m", "venv", str(home)), _INSTALL_LIMIT_S)
        _do(peer, (str(python), "-m", "pip", "install", "--quiet", *peer.requirements), _INSTALL_LIMIT_S)
        check(peer, python)
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    (home / "complete").touch()
    return python


def check(peer: Peer, python: Path) -> None:
    """Errors: `NotInstalled` when this interpreter does not have the peer."""
    _do(peer, (str(python), "-c", peer.check), _CHECK_LIMIT_S)


def _do(peer: Peer, command: Sequence[str], limit_s: float) -> None:
    hint = f"leave {peer.name} out of --peers, or name an interpreter that has it: --python {peer.name}=PATH"
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{peer.title} cannot be installed here: {error}; {hint}") from None
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        # Of pip's errors the first is the cause; a program tells it last.
        reason = next((line for line in said if line.startswith("ERROR:")), said[-1] if said else "it gave no reason")
        raise NotInstalled(f"{peer.title} cannot be installed here: {reason[:_TOLD]}; {hint}")
