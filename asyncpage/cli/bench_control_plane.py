"""`asyncpage bench control-plane`: what the engine itself costs, with an executor that answers every step at once.

The result is a table, or one JSON object; it is held to bars, and the exit code is 1 below one of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.loop import new_runner
from asyncpage.clock import SystemClock
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.cli.control_plane.result import Result

FAILURE = 1

_EXAMPLES = """\
loads:
  steady   256, 1,024 and 4,096 rows that only decode
  churn    256 rows whose requests come and go: prompts of 216 token ids that share 192 with others, 64 tokens an
           answer, two stop strings, one logprob
  sse      256 clients in a process of their own, on another core, that read streams of the real server on loopback

bars (tokens/s of one core; what the control plane can do, not what a model makes):
  steady 256   1,000,000, of which scheduler and KV manager take at most 30 us a step up to sending it
  steady 1024  scheduler and KV manager: 120 us
  steady 4096  a step costs at most 16 times one at 256
  churn 256    300,000
  sse 256      100,000

How to read it: tokens/s of one core counts the time that this process computed, so a busy machine shows less by the
clock; still, only a quiet machine shows what it can do. Rates are taken first; each actor is timed in a second part
of the run, whose clock adds some microseconds a step. Everything is a median over windows.

examples:
  asyncpage bench control-plane
  asyncpage bench control-plane --load steady --running 256 --windows 21
  asyncpage bench control-plane --json > today.json
"""

_RUNNING = {"steady": (256, 1024, 4096), "churn": (256,), "sse": (256,)}


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load", action="append", choices=tuple(_RUNNING), help="only this one (repeatable); default: all of them"
    )
    parser.add_argument(
        "--running", action="append", type=int, metavar="N", help="rows or clients (repeatable); default: see above"
    )
    parser.add_argument("--windows", type=int, default=9, metavar="N", help="windows a median is taken of (default 9)")
    parser.add_argument(
        "--tokens", type=int, default=100_000, metavar="N", help="tokens a window, at least (default 100000)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    for flag, values in (
        ("--running", arguments.running or ()),
        ("--windows", (arguments.windows,)),
        ("--tokens", (arguments.tokens,)),
    ):
        for value in values:
            if value < 1:
                raise UsageError(f"{flag} must be at least 1, got {value}")
    from asyncpage.cli.control_plane.result import below, table
    from asyncpage.logs import configure_logs

    configure_logs("warning", "console")
    chosen = [
        (load, running)
        for load in dict.fromkeys(arguments.load or _RUNNING)
        for running in arguments.running or _RUNNING[load]
    ]
    results = list(_measure(chosen, arguments.windows, arguments.tokens))
    missed = below(results)
    if arguments.json:
        print(json.dumps({"loads": [result.to_json() for result in results], "below": missed}, indent=2))
    else:
        print(table(results))
    for line in missed:
        print(f"asyncpage: below its bar: {line}", file=sys.stderr)
    return FAILURE if missed else 0


def _measure(chosen: list[tuple[str, int]], windows: int, tokens: int) -> Iterator[Result]:
    """Each load on a loop of its own."""
    from asyncpage.cli.control_plane.loads import churn, steady
    from asyncpage.cli.control_plane.sse import sse

    loads: dict[str, Any] = {"steady": steady, "churn": churn, "sse": sse}
    progress = Progress("control plane", "loads", sys.stderr, SystemClock().now)
    try:
        for done, (load, running) in enumerate(chosen):
            progress.update(done, len(chosen))
            with new_runner() as runner:
                work: Coroutine[Any, Any, Result] = loads[load](running, windows, tokens)
                yield runner.run(work)
    finally:
        progress.close()


COMMAND = Command(
    "control-plane",
    "[options]",
    "measure the engine itself, without a model: tokens/s of one core, and each actor's time",
    _EXAMPLES,
    _declare,
    _run,
)
