"""`asyncpage chat`: a conversation in the terminal. Ctrl-C stops the answer, Ctrl-D leaves.

The loop runs only while an answer comes: typing happens between two runs of it, so Ctrl-C means the answer while
one comes and the line while one is typed.

INVARIANT: the history holds what was said and shown: a stopped answer stays in it as far as it was shown, and a
message that got no answer leaves it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.loop import new_runner
from asyncpage.cli.sampling import chosen_sampling, declare_sampling, sampling_over
from asyncpage.cli.settings import declare, declare_model, resolve, show
from asyncpage.errors import ActorDied, RequestError, UsageError

if TYPE_CHECKING:
    from asyncpage.engine import AsyncEngine

_EXAMPLES = """\
examples:
  asyncpage chat
  asyncpage chat ~/models/llama.gguf --system 'Answer in one sentence.' --temperature 0.2

while talking: Ctrl-C stops the answer, Ctrl-D leaves, /reset forgets the conversation, /help shows this
"""

_HELP = "Ctrl-C stops the answer, Ctrl-D or /exit leaves, /reset forgets the conversation, /help shows this."


def _declare(parser: argparse.ArgumentParser) -> None:
    declare_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message in front of the conversation")
    parser.add_argument("--adapter", metavar="NAME", help="run the model with this adapter, one that --lora names")
    declare_sampling(parser)
    declare(parser, "engine")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    settings = resolve(arguments, environment)
    if arguments.print_config:
        print(show(settings))
        settings.engine.check()
        return 0
    settings.engine.check()
    chosen = chosen_sampling(arguments)
    from asyncpage.cli.preflight import check_engine

    check_engine(settings.engine)
    from asyncpage.engine import AsyncEngine
    from asyncpage.logs import configure_logs

    configure_logs("warning", "console")
    conversation = Conversation(arguments.system, chosen, arguments.adapter)
    with new_runner() as runner:
        _say(f"loading {settings.engine.model}")
        engine = runner.run(AsyncEngine.start(settings.engine, on_death=conversation.died))
        try:
            if not engine.is_generative:
                raise UsageError(f"{settings.engine.model} makes embeddings only and cannot chat; give another model")
            if not engine.has_chat_template:
                raise UsageError(
                    f"{settings.engine.model} has no chat template; give one with --chat-template FILE, "
                    "or use asyncpage generate"
                )
            conversation.run(engine, runner)
        finally:
            runner.run(engine.stop())
    return 0


class Conversation:
    """Reads lines, asks the engine, shows what comes. `chosen` are the sampling parameters that were given.

    `adapter`: the name of one to run with.
    """

    def __init__(self, system: str | None, chosen: Mapping[str, Any], adapter: str | None = None) -> None:
        self._adapter = adapter
        self._opening = () if system is None else ({"role": "system", "content": system},)
        self._history: list[dict[str, str]] = [*self._opening]
        self._chosen = chosen
        self._death: str | None = None

    def run(self, engine: AsyncEngine, runner: asyncio.Runner) -> None:
        """Talk until the input ends. Errors: `ActorDied`."""
        _say(_HELP)
        if sys.stdin.isatty() and find_spec("readline") is not None:
            import readline  # noqa: F401  # its import gives input() line editing and recall
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/help":
                    _say(_HELP)
                case "/reset":
                    self._history = [*self._opening]
                    _say("the conversation is forgotten")
                case word if word.startswith("/") and " " not in word:
                    _say(f"there is no {word}. {_HELP}")
                case text:
                    self._ask(engine, runner, text)

    def died(self, reason: str) -> None:
        """An actor died: no other answer will come."""
        self._death = reason

    def _read(self) -> str | None:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            return ""
        except EOFError:
            if sys.stdin.isatty():
                sys.stderr.write("\n")
            return None

    def _ask(self, engine: AsyncEngine, runner: asyncio.Runner, text: str) -> None:
        self._history.append({"role": "user", "content": text})
        shown: list[str] = []
        try:
            runner.run(self._stream(engine, shown))
        except KeyboardInterrupt:
            _say("stopped")
        except RequestError as error:
            if self._death is not None:
                raise ActorDied(self._death) from None
            _say(str(error))
        if shown:
            self._history.append({"role": "assistant", "content": "".join(shown)})
        else:
            self._history.pop()

    async def _stream(self, engine: AsyncEngine, shown: list[str]) -> None:
        sampling = sampling_over(engine.sampling_defaults, self._chosen)
        try:
            async for part in engine.chat(self._history, sampling, adapter=self._adapter):
                if part.text:
                    shown.append(part.text)
                    sys.stdout.write(part.text)
                    sys.stdout.flush()
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMAND = Command("chat", "[MODEL] [settings]", "talk to a model in the terminal", _EXAMPLES, _declare, _run)
