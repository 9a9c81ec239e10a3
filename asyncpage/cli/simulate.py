"""`asyncpage simulate`: the engine without a model, in virtual time: what a trace of requests would see of it.

Plays a trace (`simulation/run.py`), fits a latency model to a journal, or sets the two prefix indexes side by side.
Tables and JSON go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.settings import declare, resolve, show
from asyncpage.clock import SystemClock
from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.simulation.run import Machine
    from asyncpage.simulation.trace import Trace

_EXAMPLES = """\
examples:
  asyncpage simulate                                   1000 requests of chats, all users at once
  asyncpage simulate chat --request-rate 2 --burstiness 0.3 --num-requests 20000
  asyncpage simulate agents --num-kv-blocks 20000 --prefix-index tree
  asyncpage simulate random --input-tokens 256 --output-tokens 64 --max-num-seqs 256
  asyncpage simulate requests.jsonl --latency mine.toml --json
  asyncpage simulate --compare-index chat              chain and tree side by side, from one trace

how long a step takes, from your own machine:
  asyncpage serve --journal run.journal                then send it some load, and stop it
  asyncpage simulate --fit run.journal --output mine.toml
  asyncpage simulate --latency mine.toml
It knows what the journal shows: let prompts be as long, and as many at once, as those you mean to simulate.

A trace file holds a JSON object a line, in the order of the times:
  {"arrival_s": 0.5, "prompt_tokens": 300, "output_tokens": 64, "prefix_group": "a", "prefix_tokens": 200}
prompt_tokens may be a list of token ids. Prompts of a prefix_group begin with prefix_tokens of the same tokens (all of
them when it is left out). Lines of published traces do too: timestamp (ms), input_length, output_length, hash_ids.

It is the same engine with the same settings; only the executor and the clock are simulated.
"""

# Settings that mean something without a model.
_SETTINGS = frozenset(
    {
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "num_kv_blocks",
        "enable_prefix_caching",
        "prefix_index",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "itl_target_ms",
        "whole_prompt_admission",
        "watermark",
        "scheduling_policy",
        "preemption_policy",
        "fairness_bound",
        "pipeline_depth",
        "max_queue",
        "journal",
        "journal_bytes",
        "journal_tokens",
    }
)

_SHAPE = {
    "input_tokens": (int, "TOKENS", "new tokens of a prompt, in each turn"),
    "output_tokens": (int, "TOKENS", "tokens of an answer"),
    "spread": (float, "S", "lengths vary by this share of their means, 0 to 1"),
    "systems": (int, "N", "different system prompts"),
    "system_tokens": (int, "TOKENS", "length of a system prompt"),
    "turns": (float, "N", "turns of a conversation, on average"),
    "pause_s": (float, "SECONDS", "time from an answer to the next turn, on average"),
}


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", metavar="TRACE", nargs="?", default="chat", help="chat (the default), agents, random, or a JSONL file"
    )
    parser.add_argument("--num-requests", type=int, default=1000, metavar="N", help="requests in all (default 1000)")
    parser.add_argument(
        "--request-rate",
        type=float,
        default=math.inf,
        metavar="R",
        help="users that come in a second; default: all at once, as --max-concurrency lets them",
    )
    parser.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        metavar="B",
        help="1 is a Poisson process (the default), less comes in bursts, more is more even",
    )
    parser.add_argument(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="most requests under way; default: no bound with a rate or a file, else twice --max-num-seqs",
    )
    for name, (kind, metavar, text) in _SHAPE.items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        parser.add_argument(flag, dest=name, type=kind, metavar=metavar, help=f"{text}; default: the trace's own")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default 0)")
    parser.add_argument(
        "--latency", metavar="FILE", help="what a step costs; default: 8 billion weights on a large GPU"
    )
    parser.add_argument("--compare-index", action="store_true", help="play the trace with each prefix index")
    parser.add_argument("--fit", metavar="JOURNAL", help="find what a step costs in a journal, and do nothing else")
    parser.add_argument("--output", metavar="FILE", help="where --fit writes; default: standard output")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    declare(parser, "engine", only=_SETTINGS)


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.fit is not None:
        return _fit(arguments)
    if arguments.output is not None:
        raise UsageError("--output belongs to --fit; a simulation prints to standard output")
    # The seed flag is the trace's: nothing is drawn at random in the engine.
    seed, arguments.seed = arguments.seed, None
    settings = resolve(arguments, environment)
    if arguments.print_config:
        print(show(settings))
        settings.engine.check()
        return 0
    if settings.engine.kv_cache_bytes is not None:
        raise UsageError("a simulated KV pool has no bytes; give its blocks with --num-kv-blocks")
    if arguments.max_concurrency is not None and arguments.max_concurrency < 1:
        raise UsageError(f"--max-concurrency must be at least 1, got {arguments.max_concurrency}")
    config = replace(settings.engine, seed=0)
    config.check()
    trace, machine = _trace(arguments, config, seed), _machine(arguments)
    return (_compare if arguments.compare_index else _simulate)(arguments, config, machine, trace)


def _machine(arguments: argparse.Namespace) -> Machine:
    from asyncpage.simulation.latency_file import LARGE_GPU, read_latency

    return LARGE_GPU if arguments.latency is None else read_latency(Path(arguments.latency))


def _trace(arguments: argparse.Namespace, config: EngineConfig, seed: int) -> Trace:
    from asyncpage.simulation.stand_in import MAX_MODEL_LEN, VOCAB_SIZE
    from asyncpage.simulation.synthetic import SHAPES, Arrivals, synthetic_trace
    from asyncpage.simulation.trace_file import file_trace

    given = {name: value for name in _SHAPE if (value := getattr(arguments, name)) is not None}
    name = arguments.trace
    if name in SHAPES:
        return synthetic_trace(
            name,
            replace(SHAPES[name], **given),
            Arrivals(arguments.request_rate, arguments.burstiness),
            requests=arguments.num_requests,
            seed=seed,
            end_id=VOCAB_SIZE - 1,
            most_tokens=config.max_model_len or MAX_MODEL_LEN,
        )
    path = Path(name)
    if not path.exists():
        raise UsageError(f"there is no trace {name!r}: it is {', '.join(SHAPES)}, or a JSONL file")
    if given or arguments.request_rate != math.inf:
        raise UsageError("a trace file has its own times and lengths; leave out --request-rate and the shape's flags")
    return file_trace(path, end_id=VOCAB_SIZE - 1)


def _simulate(arguments: argparse.Namespace, config: EngineConfig, machine: Machine, trace: Trace) -> int:
    from asyncpage.simulation.run import simulate
    from asyncpage.simulation.summary_table import summary_table

    now = SystemClock().now
    began = now()
    progress = Progress("simulated", "req", sys.stderr, now)
    try:
        outcome = simulate(config, machine, trace, most_open=arguments.max_concurrency, on_progress=progress.update)
    finally:
        progress.close()
    if arguments.json:
        about = {"trace": trace.name, "latency": asdict(machine.latency), "device": machine.device}
        print(json.dumps(about | outcome.summary, indent=2))
    else:
        print(summary_table(outcome.summary))
        print(f"{'simulated in (s)':<48} {now() - began:>12.2f}")
    return _judge(outcome.summary, outcome.first_failure)


def _compare(arguments: argparse.Namespace, config: EngineConfig, machine: Machine, trace: Trace) -> int:
    from asyncpage.simulation.compare import compare_indexes, comparison_table

    clock = SystemClock()
    bars: dict[str, Progress] = {}

    def show_progress(kind: str, done: int, total: int | None) -> None:
        if kind not in bars:
            for bar in bars.values():
                bar.close()
            bars[kind] = Progress(f"simulated with the {kind}", "req", sys.stderr, clock.now)
        bars[kind].update(done, total)

    try:
        found = compare_indexes(
            config, machine, trace, clock.busy, most_open=arguments.max_concurrency, on_progress=show_progress
        )
    finally:
        for bar in bars.values():
            bar.close()
    if arguments.json:
        kinds = {one.kind: {"dimensions": one.dimensions, "summary": one.summary} for one in found}
        print(json.dumps({"trace": trace.name, **kinds}, indent=2))
    else:
        print(comparison_table(found))
    return max(_judge(one.summary, one.first_failure) for one in found)


def _fit(arguments: argparse.Namespace) -> int:
    from asyncpage.simulation.fit import fit_latency
    from asyncpage.simulation.journal_steps import journal_steps
    from asyncpage.simulation.latency_file import latency_text

    progress = Progress("read", "B", sys.stderr, SystemClock().now)
    try:
        found = journal_steps(Path(arguments.fit), progress.update)
    finally:
        progress.close()
    fit = fit_latency(found.steps)
    flags = " ".join(_flags(found.config, found.blocks, found.max_model_len))
    text = latency_text(fit, found.device, Path(arguments.fit).name, flags)
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {arguments.output} cannot be written: {error.strerror}") from None
    print(
        f"{arguments.output}: fitted to {fit.steps} steps, {100 * fit.explained:.1f} % of their variance explained\n"
        f"simulate the same engine with: --latency {arguments.output} {flags}"
    )
    return 0


def _flags(config: EngineConfig, blocks: int, max_model_len: int) -> list[str]:
    """The flags that make a simulated engine like the recorded one."""
    sized = replace(config, num_kv_blocks=blocks, max_model_len=max_model_len, journal=None)
    flags = []
    for field in fields(EngineConfig):
        value = getattr(sized, field.name)
        if field.name in _SETTINGS and value != field.default:
            flag = field.name.replace("_", "-")
            flags.append(f"--{flag} {value}" if not isinstance(value, bool) else f"--{'' if value else 'no-'}{flag}")
    return flags


def _judge(summary: Mapping[str, float | int | str], first_failure: str) -> int:
    """0 unless a request failed, or all were refused: a full queue is what a simulation may be there to show."""
    if first_failure:
        print(f"asyncpage: the first failure was: {first_failure}", file=sys.stderr)
    return 1 if summary["failed"] or not summary["completed"] else 0


COMMAND = Command(
    "simulate", "[TRACE] [options]", "simulate the engine on a trace, without a model", _EXAMPLES, _declare, _run
)
