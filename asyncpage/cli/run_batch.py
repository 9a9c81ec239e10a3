"""`asyncpage run-batch`: answers a file of requests and writes a file of answers, in the OpenAI API's batch format.

Starts an engine; the requests go through the server's own routes. A run that was interrupted goes on where it ended.

INVARIANT: an answer that is in the output file stays as it is, and no file is ever overwritten.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.interrupts import Interrupts
from asyncpage.cli.loop import keep_what_is_loaded, new_runner
from asyncpage.cli.settings import declare, resolve, show
from asyncpage.config import EngineConfig
from asyncpage.errors import ActorDied, AsyncpageError, UsageError

if TYPE_CHECKING:
    from asyncpage.cli.batch.result_file import ResultFile

_SPARE = 16
"""Requests at once beyond those that run at once: the next ones are read and waiting when rows become free."""

_EXAMPLES = """\
examples:
  asyncpage run-batch -i requests.jsonl -o answers.jsonl
  asyncpage run-batch -i requests.jsonl -o answers.jsonl --model ~/models/llama.gguf --max-num-seqs 64
  asyncpage run-batch -i requests.jsonl -o answers.jsonl --served-model-name gpt-4o-mini
                                          a file written for another server: names that its requests use

a line of the input:
  {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 64}}
urls are /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/responses; the body is what each route takes.
Every custom_id is another: answers are written as they come, in any order, and found by it.

a line of the output:
  {"id": "batch_req_...", "custom_id": "q1", "error": null,
   "response": {"status_code": 200, "request_id": "...", "body": {...}}}
A request that cannot be done has its error as the response's body, or under error when it could not be sent.

Interrupted (Ctrl-C, a crash, a full disk), the same command goes on: what is answered is kept and not asked again.
exit codes: 0 every line has its answer, 1 failure or interrupted, 2 something to change, 70 an actor died
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-file", metavar="FILE", help="requests, a JSON object a line")
    parser.add_argument("-o", "--output-file", metavar="FILE", help="answers; goes on where an earlier run ended")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=int,
        help=f"requests at once (default: --max-num-seqs and {_SPARE} more); lower it for requests of many choices",
    )
    declare(parser, "engine")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    settings = resolve(arguments, environment)
    if arguments.print_config:
        print(show(settings))
        settings.engine.check()
        return 0
    settings.engine.check()
    source, target = _paths(arguments)
    at_once = settings.engine.max_num_seqs + _SPARE if arguments.concurrency is None else arguments.concurrency
    if at_once < 1:
        raise UsageError(f"--concurrency must be at least 1, got {at_once}")
    from asyncpage.cli.batch.request_line import check_requests
    from asyncpage.cli.batch.result_file import ResultFile
    from asyncpage.cli.preflight import check_engine

    names = check_requests(source)
    check_engine(settings.engine)
    results = ResultFile(target, frozenset(names))
    try:
        if results.repaired:
            _say(f"the last line of {target} was cut off; its request is asked again")
        left = len(names) - len(results.answered)
        if left < len(names):
            _say(f"{len(names) - left} of {len(names)} requests are answered in {target}, {left} are left")
        if left:
            from asyncpage.logs import configure_logs

            configure_logs("warning", "console")
            with new_runner() as runner:
                runner.run(_answer(settings.engine, source, results, left, at_once))
    finally:
        results.close()
    return 0


def _paths(arguments: argparse.Namespace) -> tuple[Path, Path]:
    for flag, value in (("-i", arguments.input_file), ("-o", arguments.output_file)):
        if value is None:
            raise UsageError(f"{flag} FILE is needed; type asyncpage run-batch -i requests.jsonl -o answers.jsonl")
    source, target = Path(arguments.input_file), Path(arguments.output_file)
    if source.exists() and target.exists() and source.samefile(target):
        raise UsageError(f"-i and -o are the same file, {source}; give the answers one of their own")
    return source, target


async def _answer(config: EngineConfig, source: Path, results: ResultFile, left: int, at_once: int) -> None:
    """Errors: `ActorDied`, or `AsyncpageError` when the run was interrupted."""
    from asyncpage.cli.batch.request_line import read_requests
    from asyncpage.cli.batch.run import run_requests
    from asyncpage.engine import AsyncEngine
    from asyncpage.progress import Progress

    interrupts = Interrupts()
    deaths: list[str] = []
    good = bad = 0

    def died(reason: str) -> None:
        deaths.append(reason)
        interrupts.shutdown.set()

    def answered(is_good: bool) -> None:
        nonlocal good, bad
        good, bad = good + is_good, bad + (not is_good)
        bar.update(good + bad, left)

    with interrupts.listening(lambda: _say("stopping; what is answered stays")):
        _say(f"loading {config.model}")
        engine = await interrupts.unless_shutdown(AsyncEngine.start(config, on_death=died))
        if engine is not None:
            keep_what_is_loaded()
            bar = Progress("answering", "requests", sys.stderr, time.monotonic)
            bar.update(0, left)
            work = run_requests(
                engine,
                read_requests(source),
                results,
                at_once=min(at_once, left),
                is_over=lambda: bool(deaths),
                on_answer=answered,
            )
            try:
                await interrupts.unless_shutdown(work)
            finally:
                bar.close()
                await engine.stop()
    if deaths:
        raise ActorDied(deaths[0])
    if good + bad < left:
        raise AsyncpageError(f"stopped after {good + bad} of {left} requests; the same command goes on with the others")
    _say(f"{good + bad} requests answered, {bad} of them with an error; see {results.path}")


def _say(text: str) -> None:
    print(f"asyncpage: {text}", file=sys.stderr, flush=True)


COMMAND = Command(
    "run-batch", "-i FILE -o FILE [settings]", "answer a file of requests, line by line", _EXAMPLES, _declare, _run
)
