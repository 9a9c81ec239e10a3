"""`asyncpage bench speculation`: what guessing tokens ahead gains, an engine with it beside one without.

Both are loaded, and answer the same prompts in turn, so that whatever else the machine does slows both. The rate is
that of decoding: tokens behind an answer's first, by the time since it came.

INVARIANT: the two engines' tokens are compared, and where they differ the benchmark fails: speed by other answers is
none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.loop import new_runner
from asyncpage.cli.settings import declare, resolve, show
from asyncpage.clock import SystemClock
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.config import EngineConfig
    from asyncpage.engine import AsyncEngine
    from asyncpage.messages import Prompt

_EXAMPLES = """\
examples:
  asyncpage bench speculation                                      n-gram drafts on a text that repeats itself
  asyncpage bench speculation --text chat --max-concurrency 8
  asyncpage bench speculation --model large.gguf --num-speculative-tokens 4 --json
"""

_PASSAGE = (
    "The harbour master keeps three books. In the first he writes the name of every ship that comes in, the hour, and "
    "what she carries. In the second he writes who owes what, and until when. The third is his own: in it he writes "
    "what the weather was like, which birds he saw over the breakwater, and what the old fishermen said about both."
)

_QUESTIONS = (
    "Explain how a bicycle stays upright.",
    "Write a short letter to a friend about a rainy weekend.",
    "What should one think of before planting a tree?",
    "Tell a story about a lighthouse keeper and a storm.",
)


@dataclass(frozen=True, slots=True)
class Round:
    """One engine's answers to all prompts: tokens by prompt, and tokens a second, over all and of each on average."""

    tokens: tuple[tuple[int, ...], ...]
    each_rate: float
    accepted: int
    rejected: int


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        choices=("echo", "chat"),
        default="echo",
        help="prompts: a passage that is repeated (the default), or questions",
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens an answer (default 128)")
    parser.add_argument("--max-concurrency", type=int, default=1, metavar="N", help="answers at once (default 1)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each engine (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    declare(parser, "engine")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    for flag in ("max_tokens", "max_concurrency", "rounds"):
        if getattr(arguments, flag) < 1:
            raise UsageError(f"--{flag.replace('_', '-')} must be at least 1, got {getattr(arguments, flag)}")
    settings = resolve(arguments, environment)
    config = settings.engine
    if settings.origins["speculation"] == "default":
        config = replace(config, speculation="ngram")
    if arguments.print_config:
        print(show(settings))
        config.check()
        return 0
    config.check()
    if config.speculation == "off":
        raise UsageError("--speculation off is what the other engine does; name a kind of speculation to measure")
    from asyncpage.logs import configure_logs

    configure_logs("warning", "console")
    with new_runner() as runner:
        result = runner.run(_measure(config, arguments))
    print(json.dumps(result, indent=2) if arguments.json else _table(result))
    if not result["same_tokens"]:
        print("asyncpage: the two engines gave different tokens", file=sys.stderr)
    return 0 if result["same_tokens"] else 1


async def _measure(config: EngineConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    from asyncpage.engine import AsyncEngine

    engines: list[AsyncEngine] = []
    progress = Progress("rounds", "round", sys.stderr, SystemClock().now)
    rounds: tuple[list[Round], list[Round]] = [], []
    try:
        for one in (config.without_speculation(), config):
            engines.append(await AsyncEngine.start(one))
        prompts = _prompts(arguments.text, engines[0].has_chat_template, arguments.max_concurrency)
        for engine in engines:  # allocations, and the first look at what steps take
            await _answer_all(engine, prompts, arguments)
        for number in range(arguments.rounds):
            for engine, found in zip(engines, rounds, strict=True):
                progress.update(2 * number + len(rounds[1]) - number, 2 * arguments.rounds)
                found.append(await _answer_all(engine, prompts, arguments))
    finally:
        progress.close()
        for engine in engines:
            await engine.stop()
    without, with_it = (statistics.median(one.each_rate for one in found) for found in rounds)
    accepted = sum(one.accepted for one in rounds[1])
    drafted = accepted + sum(one.rejected for one in rounds[1])
    return {
        "speculation": config.speculation,
        "num_speculative_tokens": config.most_drafts,
        "text": arguments.text,
        "max_concurrency": arguments.max_concurrency,
        "decode_rate_off": without,
        "decode_rate_on": with_it,
        "gain": with_it / without,
        "acceptance": accepted / drafted if drafted else 0.0,
        "same_tokens": all(off.tokens == on.tokens for off, on in zip(*rounds, strict=True)),
    }


def _prompts(text: str, has_template: bool, count: int) -> list[Prompt]:
    from asyncpage.messages import ChatPrompt, TextPrompt

    if text == "echo":
        # Each begins in another place, so that the prefix cache does not help the later ones.
        words = _PASSAGE.split()
        passages = (" ".join(words[at % len(words) :] + words[: at % len(words)]) for at in range(count))
        begun = [(passage, passage[: passage.index(" ", len(passage) // 4)]) for passage in passages]
        return [TextPrompt(f"{passage}\n\n{passage}\n\n{beginning}") for passage, beginning in begun]
    # All of them, however few at once: of one alone the gain would be that answer's.
    questions = (_QUESTIONS[at % len(_QUESTIONS)] for at in range(max(count, len(_QUESTIONS))))
    if has_template:
        return [ChatPrompt(({"role": "user", "content": question},)) for question in questions]
    return [TextPrompt(question) for question in questions]


async def _answer_all(engine: AsyncEngine, prompts: Sequence[Prompt], arguments: argparse.Namespace) -> Round:
    from asyncpage.core.sampling import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=arguments.max_tokens, ignore_eos=True)
    free = asyncio.Semaphore(arguments.max_concurrency)

    async def answer(prompt: Prompt) -> tuple[tuple[int, ...], float, int, int]:
        tokens: list[int] = []
        began, first = 0.0, 0
        accepted = rejected = 0
        async with free:
            async for part in engine.generate(prompt, sampling):
                if part.token_ids and not tokens:
                    began, first = engine.now(), len(part.token_ids)
                tokens += part.token_ids
                if part.finish is not None:
                    accepted, rejected = part.finish.accepted_drafts, part.finish.rejected_drafts
        rate = (len(tokens) - first) / max(engine.now() - began, 1e-9)
        return tuple(tokens), rate, accepted, rejected

    answers = await asyncio.gather(*map(answer, prompts))
    return Round(
        tokens=tuple(tokens for tokens, _, _, _ in answers),
        each_rate=statistics.mean(rate for _, rate, _, _ in answers),
        accepted=sum(accepted for _, _, accepted, _ in answers),
        rejected=sum(rejected for _, _, _, rejected in answers),
    )


def _table(result: Mapping[str, Any]) -> str:
    rows = (
        ("speculation", f"{result['speculation']}, at most {result['num_speculative_tokens']} tokens"),
        ("text", f"{result['text']}, {result['max_concurrency']} at once"),
        ("decode rate of an answer without (tok/s)", f"{result['decode_rate_off']:.1f}"),
        ("decode rate of an answer with (tok/s)", f"{result['decode_rate_on']:.1f}"),
        ("gain", f"{result['gain']:.2f} x"),
        ("drafts that stood", f"{100 * result['acceptance']:.0f} %"),
        ("same tokens", "yes" if result["same_tokens"] else "NO"),
    )
    return "\n".join(f"{name:<44} {value:>24}" for name, value in rows)


COMMAND = Command(
    "speculation", "[options]", "measure what guessing tokens ahead gains, side by side", _EXAMPLES, _declare, _run
)
