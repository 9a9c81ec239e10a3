"""`asyncpage bench serve`: measures any OpenAI-compatible server with random prompts, under the usual metric names.

The result is a table, or one JSON object; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.loop import new_runner
from asyncpage.clock import SystemClock
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

_EXAMPLES = """\
examples:
  asyncpage bench serve                                      16 prompts at once to http://127.0.0.1:8000
  asyncpage bench serve --num-prompts 64 --max-concurrency 8
  asyncpage bench serve --num-prompts 200 --request-rate 4 --save-result run.json
  asyncpage bench serve --base-url http://127.0.0.1:9000 --endpoint /v1/chat/completions

Prompts are random common words, about one token each; the token counts shown are the server's own (usage).
"""

_URL = "http://127.0.0.1:8000"

_LATENCIES = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token, first excluded (TPOT)",
    "itl": "inter-token latency, between chunks (ITL)",
    "e2el": "end-to-end latency (E2EL)",
}

_COUNTS = {
    "completed": "successful requests",
    "failed": "failed requests",
    "duration": "benchmark duration (s)",
    "total_input_tokens": "total input tokens",
    "total_cached_tokens": "of them cached",
    "total_output_tokens": "total generated tokens",
    "request_throughput": "request throughput (req/s)",
    "output_throughput": "output token throughput (tok/s)",
    "total_token_throughput": "total token throughput (tok/s)",
}


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", default=_URL, metavar="URL", help=f"where the server listens (default {_URL})")
    parser.add_argument(
        "--endpoint",
        default="/v1/completions",
        metavar="PATH",
        help="/v1/completions (the default) or /v1/chat/completions",
    )
    parser.add_argument("--model", metavar="NAME", help="default: the first that /v1/models lists")
    parser.add_argument("--api-key", default="", metavar="KEY", help="sent as a bearer token")
    parser.add_argument("--num-prompts", type=int, default=16, metavar="N", help="requests to send (default 16)")
    parser.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        metavar="R",
        help="requests a second at random; default: all at once",
    )
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="most requests under way; default: no bound")
    parser.add_argument("--random-input-len", type=int, default=128, metavar="N", help="words a prompt (default 128)")
    parser.add_argument("--random-output-len", type=int, default=64, metavar="N", help="tokens to ask for (default 64)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default 0")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--save-result", metavar="FILE", help="also write the JSON object to a file")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    for flag in ("num_prompts", "random_input_len", "random_output_len", "max_concurrency"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag.replace('_', '-')} must be at least 1, got {value}")
    if not arguments.request_rate > 0:
        raise UsageError(
            f"--request-rate must be greater than 0, got {arguments.request_rate}; leave it out for all at once"
        )
    with new_runner() as runner:
        result, first_error = runner.run(_measure(arguments))
    text = json.dumps(result, indent=2)
    if arguments.save_result:
        Path(arguments.save_result).write_text(text + "\n", encoding="utf-8")
    print(text if arguments.json else _table(result))
    if first_error:
        print(f"asyncpage: the first failure was: {first_error}", file=sys.stderr)
    return 1 if result["failed"] else 0


async def _measure(arguments: argparse.Namespace) -> tuple[dict[str, float | int | str], str]:
    """The result with the plan that led to it (without the key), and the first failure's text."""
    from asyncpage.cli.latency import summary
    from asyncpage.cli.load import Plan, drive, first_model

    base_url = arguments.base_url.rstrip("/")
    plan = Plan(
        base_url=base_url,
        endpoint=arguments.endpoint,
        model=arguments.model or await first_model(base_url, arguments.api_key),
        api_key=arguments.api_key,
        num_prompts=arguments.num_prompts,
        request_rate=arguments.request_rate,
        max_concurrency=arguments.max_concurrency,
        random_input_len=arguments.random_input_len,
        random_output_len=arguments.random_output_len,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    now = SystemClock().now
    progress = Progress("requests", "req", sys.stderr, now)
    try:
        samples, duration_s = await drive(plan, now, progress.update)
    finally:
        progress.close()
    about = {name: value for name, value in asdict(plan).items() if name != "api_key"}
    if plan.request_rate == math.inf:
        about["request_rate"] = "inf"  # JSON has no infinity
    first_error = next((sample.error for sample in samples if sample.error), "")
    return about | summary(samples, duration_s), first_error


def _table(result: Mapping[str, float | int | str]) -> str:
    lines = [f"{text:<48} {_number(result[name]):>12}" for name, text in _COUNTS.items()]
    for name, text in _LATENCIES.items():
        if f"mean_{name}_ms" in result:
            lines.append(text)
            for kind in ("mean", "median", "p99"):
                lines.append(f"  {kind + ' (ms)':<46} {_number(result[f'{kind}_{name}_ms']):>12}")
    return "\n".join(lines)


def _number(value: float | int | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


COMMAND = Command("serve", "[options]", "measure a running server: throughput and latencies", _EXAMPLES, _declare, _run)
