"""The `asyncpage` command: finds the command that was asked for, runs it, turns errors into exit codes.

Exit codes: 0 done, 1 failure, 2 something to change in the command line or the environment, 70 an actor died.

INVARIANT: an error that asyncpage raises on purpose is shown as its text alone; a traceback means a bug.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import asyncpage
from asyncpage.cli import backends, bench, chat, doctor, fetch, generate, replay, run_batch, serve, simulate
from asyncpage.cli.command import Command
from asyncpage.cli.settings import nearest
from asyncpage.errors import ActorDied, AsyncpageError, UsageError

FAILURE = 1
USAGE = 2
ACTOR_DIED = 70

COMMANDS: tuple[Command, ...] = (
    serve.COMMAND,
    generate.COMMAND,
    chat.COMMAND,
    run_batch.COMMAND,
    fetch.COMMAND,
    backends.COMMAND,
    doctor.COMMAND,
    bench.COMMAND,
    replay.COMMAND,
    simulate.COMMAND,
)

# Flags that users of similar servers type by habit, and what stands here in their place.
_ELSEWHERE = {
    "--gpu-memory-utilization": "the KV cache is sized by --kv-cache-bytes, by default a share of what is free",
    "--tensor-parallel-size": "this version runs a model on one device",
    "--quantization": "give a model whose files are quantised: GGUF, or a folder of GPTQ, AWQ or FP8",
    "--tokenizer": "the tokenizer is the model's own",
    "--trust-remote-code": "a model's code is never run; its files are read",
}

_OVERVIEW = """\
first steps:
  asyncpage fetch demo                    fetch the small demo model, once
  asyncpage serve                         serve it at http://127.0.0.1:8000
  asyncpage serve model.gguf --port 9000  serve a model of yours
  asyncpage fetch ORG/NAME                fetch one from the Hugging Face Hub, for: asyncpage serve ORG/NAME
  asyncpage chat                          talk to it in the terminal
  asyncpage doctor                        see what this machine offers and lacks

'asyncpage COMMAND --help' shows a command's flags and examples.
Every setting can also come from an ASYNCPAGE_* variable or a TOML file (--config).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        return _tell(str(error), USAGE)
    except ActorDied as error:
        return _tell(str(error), ACTOR_DIED)
    except AsyncpageError as error:
        return _tell(str(error), FAILURE)
    except KeyboardInterrupt:
        return _tell("interrupted", FAILURE)
    except BrokenPipeError:
        # Whoever read our output has left; point stdout elsewhere so that the flush at exit does not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def _run(argv: Sequence[str]) -> int:
    parser = _Parser(
        prog="asyncpage",
        description="Serve language models: paged KV cache, continuous batching, the OpenAI API.",
        epilog=_OVERVIEW,
    )
    parser.add_argument("--version", action="version", version=f"asyncpage {asyncpage.__version__}")
    words = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    parsers: dict[str, argparse.ArgumentParser] = {}
    for command in COMMANDS:
        parsers[command.name] = words.add_parser(
            command.name, help=command.summary, description=command.summary, epilog=command.examples
        )
        command.declare(parsers[command.name])
        parsers[command.name].usage = f"asyncpage {command.name} {command.words}".rstrip()
    if argv and not argv[0].startswith("-") and argv[0] not in parsers:
        raise UsageError(f"there is no command {argv[0]!r}{nearest(argv[0], tuple(parsers))} See 'asyncpage --help'")
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.command is None:
        parser.print_help()
        return USAGE
    if unknown:
        chosen = getattr(arguments, "parser", parsers[arguments.command])  # of a command within the command, its own
        raise _unknown(chosen.prog.removeprefix("asyncpage "), unknown, chosen)
    command = next(command for command in COMMANDS if command.name == arguments.command)
    return command.run(arguments, os.environ)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`s of one line, without the page of usage in front."""

    def __init__(self, **options: object) -> None:
        options.update(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        super().__init__(**options)  # type: ignore[arg-type]  # passed through from add_parser as they came

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see '{self.prog} --help'")


def _unknown(command: str, unknown: Sequence[str], parser: argparse.ArgumentParser) -> UsageError:
    known = re.findall(r"--[a-z][a-z-]*", parser.format_help())
    word = unknown[0].split("=")[0]
    if word in _ELSEWHERE:
        return UsageError(f"{command} does not know {word}: {_ELSEWHERE[word]}")
    return UsageError(f"{command} does not know {word}{nearest(word, known)} See 'asyncpage {command} --help'")


def _tell(text: str, code: int) -> int:
    print(f"asyncpage: {text}", file=sys.stderr)
    return code
