"""`asyncpage generate`: continues prompts and writes what comes to standard output, as it comes.

Starts an engine. One prompt's answer is streamed; several are asked at once, so that they share batches, and printed
in their order when all are there.

INVARIANT: standard output holds answers only; everything said to the user goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.loop import new_runner
from asyncpage.cli.sampling import chosen_sampling, declare_sampling, sampling_over
from asyncpage.cli.settings import declare, resolve, show
from asyncpage.errors import ActorDied, RequestError, UsageError

if TYPE_CHECKING:
    from asyncpage.config import EngineConfig
    from asyncpage.outputs import Part, RequestOutput

_EXAMPLES = """\
examples:
  asyncpage generate 'Once upon a time' --max-tokens 64
  asyncpage generate --chat 'Name three rivers.' --temperature 0
  asyncpage generate --model ~/models/llama.gguf 'def fib(n):' --stop 'def '
  asyncpage generate 'One' 'Two' --json --seed 7
  cat letter.txt | asyncpage generate --chat
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="text to continue; '-' or none reads the input")
    parser.add_argument("--chat", action="store_true", help="put each prompt to the model as a user's message")
    parser.add_argument("--adapter", metavar="NAME", help="run the model with this adapter, one that --lora names")
    parser.add_argument("--json", action="store_true", help="one JSON object a prompt instead of bare text")
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
    prompts = read_prompts(arguments.prompts, sys.stdin)
    from asyncpage.cli.preflight import check_engine

    check_engine(settings.engine)
    from asyncpage.logs import configure_logs

    configure_logs("warning", "console")
    with new_runner() as runner:
        return runner.run(
            _generate(settings.engine, prompts, chosen, arguments.adapter, arguments.chat, arguments.json)
        )


def read_prompts(words: Sequence[str], source: TextIO) -> list[str]:
    """The prompts that the arguments name; `-`, or no argument, stands for all that `source` holds.

    Errors: `UsageError` when there is none, or one is empty.
    """
    if not words and source.isatty():
        raise UsageError("there is no prompt; type asyncpage generate 'Once upon a time', or pipe a text in")
    if "" in words:
        raise UsageError("a prompt is empty; type asyncpage generate 'Once upon a time'")
    return [_whole(source) if word == "-" else word for word in words or ("-",)]


def _whole(source: TextIO) -> str:
    text = source.read().removesuffix("\n")
    if not text:
        raise UsageError("the input is empty; pipe a text in or give the prompt as an argument")
    return text


async def _generate(
    config: EngineConfig,
    prompts: Sequence[str],
    chosen: Mapping[str, Any],
    adapter: str | None,
    is_chat: bool,
    as_json: bool,
) -> int:
    from asyncpage.engine import AsyncEngine
    from asyncpage.messages import ChatPrompt, TextPrompt

    deaths: list[str] = []
    engine = await AsyncEngine.start(config, on_death=deaths.append)
    try:
        sampling = sampling_over(engine.sampling_defaults, chosen)

        def answer(text: str) -> AsyncIterator[Part]:
            prompt = ChatPrompt(({"role": "user", "content": text},)) if is_chat else TextPrompt(text)
            return engine.generate(prompt, sampling, adapter=adapter)

        if len(prompts) == 1 and not as_json:
            await _stream(answer(prompts[0]))
            return 0
        outcomes = await asyncio.gather(*(_collect(answer(text)) for text in prompts))
    except RequestError:
        if deaths:
            raise ActorDied(deaths[0]) from None
        raise
    finally:
        await engine.stop()
    if deaths:
        raise ActorDied(deaths[0])
    for text, outcome in zip(prompts, outcomes, strict=True):
        if isinstance(outcome, RequestError):
            print(f"asyncpage: {text[:40]!r}: {outcome}", file=sys.stderr)
        else:
            print(_json(text, outcome) if as_json else outcome.text, flush=True)
    return 1 if any(isinstance(outcome, RequestError) for outcome in outcomes) else 0


async def _stream(parts: AsyncIterator[Part]) -> None:
    async for part in parts:
        sys.stdout.write(part.text)
        sys.stdout.flush()
    sys.stdout.write("\n")


async def _collect(parts: AsyncIterator[Part]) -> RequestOutput | RequestError:
    """The whole answer, or why there is none: one prompt's refusal is not the others'."""
    from asyncpage.outputs import gather

    try:
        return gather([part async for part in parts], 1, has_logprobs=False, has_prompt_logprobs=False)
    except RequestError as error:
        return error


def _json(prompt: str, output: RequestOutput) -> str:
    line = {
        "prompt": prompt,
        "text": output.text,
        "finish_reason": output.outputs[0].finish_reason,
        "prompt_tokens": output.prompt_tokens,
        "completion_tokens": len(output.outputs[0].token_ids),
    }
    return json.dumps(line, ensure_ascii=False)


COMMAND = Command(
    "generate", "[PROMPT ...] [settings]", "continue prompts and print what comes", _EXAMPLES, _declare, _run
)
