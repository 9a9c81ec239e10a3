"""`asyncpage bench roofline`: how near steps come to what this machine's memory and arithmetic allow.

The result is a table, or one JSON object. The model runs in this process, without an engine around it.

INVARIANT: nothing is put around the parts of a step that is timed, and its work is counted, never measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncpage.cli.command import Command, Environment
from asyncpage.cli.settings import declare, resolve, show
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.cli.random_model import Shape
    from asyncpage.config import EngineConfig
    from asyncpage.executor.roofline import Machine, Work

_EXAMPLES = """\
examples:
  asyncpage bench roofline                                      the demo: 1, 8 and 32 rows, and a prompt of 1,024 tokens
  asyncpage bench roofline --model large.gguf --context 4000
  asyncpage bench roofline --random-weights 2048x8192x16        a Llama of that size, without having one
  asyncpage bench roofline --random-weights 2048x8192x16 --keep large.gguf    and keep it, for every other command

How to read it: 'at least' is the time that the machine needs for the step's work, the greater of its bytes by the
measured rate of memory and its operations by the measured rate of products of float32 matrices; the share says which of
the two, and how much of the time it took that is. Products of quantised weights may be faster than those of float32:
then a share of arithmetic is above 100 %.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of step: its work, and what it took."""

    title: str
    tokens: int
    work: Work
    took_s: float


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, default=256, metavar="TOKENS", help="that rows attend to (default 256)")
    parser.add_argument("--batches", default="1,8,32", metavar="N,M", help="rows of steps that decode (default 1,8,32)")
    parser.add_argument("--prompt", type=int, default=1024, metavar="TOKENS", help="of the prompt (default 1024)")
    parser.add_argument(
        "--random-weights",
        metavar="SHAPE",
        help="instead of a model: hidden x intermediate x layers, in 4 bits, with the demo's tokens",
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write that model here, and leave it")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    declare(parser, "engine")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    settings = resolve(arguments, environment)
    batches = _batches(arguments.batches)
    for flag in ("context", "prompt"):
        if getattr(arguments, flag) < 1:
            raise UsageError(f"--{flag} must be at least 1, got {getattr(arguments, flag)}")
    if arguments.print_config:
        print(show(settings))
        return 0
    settings.engine.check()
    if arguments.random_weights is None:
        if arguments.keep is not None:
            raise UsageError("--keep goes with --random-weights; give both or neither")
        return _show(settings.engine, arguments, batches)
    from asyncpage.cli.random_model import Shape

    shape = Shape.parse(arguments.random_weights)
    with tempfile.TemporaryDirectory(prefix="asyncpage-") as folder:
        path = arguments.keep or Path(folder) / "random.gguf"
        if path.exists():
            raise UsageError(f"--keep {path} is there already; name another file, or remove it")
        _write(path, shape)
        return _show(replace(settings.engine, model=str(path)), arguments, batches)


def _batches(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UsageError(f"--batches must be numbers of rows, as in 1,8,32; got {text!r}")
    return found


def _write(path: Path, shape: Shape) -> None:
    from asyncpage.cli.random_model import write_random_model
    from asyncpage.store import fetch_demo

    progress = Progress("writing random weights", "B", sys.stderr, time.monotonic)
    try:
        write_random_model(path, shape, fetch_demo(), progress.update)
    finally:
        progress.close()


def _show(config: EngineConfig, arguments: argparse.Namespace, batches: Sequence[int]) -> int:
    machine, about, lines = _measure(config, arguments.context, arguments.prompt, batches)
    if arguments.json:
        print(json.dumps(_data(machine, about, lines), indent=2))
    else:
        print("\n".join(_table(machine, about, lines)))
    return 0


def _measure(
    config: EngineConfig, context: int, prompt: int, batches: Sequence[int]
) -> tuple[Machine, Mapping[str, Any], tuple[Line, ...]]:
    from asyncpage.executor.roofline import decode_work, measure_machine, prompt_work
    from asyncpage.executor.step_clock import measure_whole
    from asyncpage.executor.step_graph import read_step_graph
    from asyncpage.house import executor_settings
    from asyncpage.machine import read_cores
    from asyncpage.store import resolve_model

    settings = executor_settings(config, resolve_model(config.model), None, None)
    graph = read_step_graph(settings, context)
    if graph.is_encoder:
        raise UsageError("this model encodes texts; 'asyncpage doctor --model' says what a step of it does")
    half = read_step_graph(settings, max(1, prompt // 2))
    if prompt > graph.max_model_len:
        raise UsageError(f"--prompt {prompt} is more than the {graph.max_model_len} tokens that this model takes")
    threads = config.cpu_threads or max(1, int(read_cores()))
    machine = measure_machine(threads)
    print(f"loading {graph.elements / 1e6:.0f} million weights ...", file=sys.stderr, flush=True)
    progress = Progress("measuring", "steps", sys.stderr, time.monotonic)
    try:
        prefill, *decodes = measure_whole(graph, settings, batches, prompt, progress.update)
    finally:
        progress.close()
    lines = [
        Line(_rows(one.rows, context), one.rows, decode_work(graph, one.rows), one.total_us / 1e6) for one in decodes
    ]
    work = prompt_work(half, prompt)
    lines.append(Line(f"a prompt of {prompt:,} tokens", prompt, work, prefill.total_us / 1e6))
    about = {
        "model": Path(config.model).name,
        "family": graph.family,
        "weights": graph.elements,
        "dtype": graph.dtype,
        "kv_cache_dtype": graph.kv_dtype,
        "attention_backend": graph.backend,
        "threads": threads,
        "context": context,
    }
    return machine, about, tuple(lines)


def _rows(rows: int, context: int) -> str:
    return f"{rows} row{'s' * (rows > 1)}, a token each behind {context - 1}"


def _bound(machine: Machine, work: Work) -> str:
    """What takes the most of its time."""
    return "memory" if work.bytes / machine.bytes_per_s >= work.flops / machine.flops_per_s else "arithmetic"


def _data(machine: Machine, about: Mapping[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    return {
        **about,
        "machine": asdict(machine),
        "steps": [
            {
                "title": line.title,
                "tokens": line.tokens,
                **asdict(line.work),
                "least_s": line.work.least_s(machine),
                "took_s": line.took_s,
                "share": line.work.least_s(machine) / line.took_s,
                "bound": _bound(machine, line.work),
            }
            for line in lines
        ],
    }


def _table(machine: Machine, about: Mapping[str, Any], lines: Sequence[Line]) -> Iterator[str]:
    yield (
        f"{about['model']}: {about['family']}, {about['weights'] / 1e6:,.0f} million weights, computed in "
        f"{about['dtype']}, KV cache in {about['kv_cache_dtype']}, attention by {about['attention_backend']}"
    )
    yield (
        f"this machine, {about['threads']} threads: memory {machine.bytes_per_s / 1e9:.1f} GB/s, products of float32 "
        f"{machine.flops_per_s / 1e9:.0f} GFLOP/s"
    )
    yield ""
    heads = ("a step of", "bytes", "operations", "at least", "took", "share", "", "tokens/s")
    cells = [heads, *(_cells(machine, line) for line in lines)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    for row in cells:
        aligned = (
            cell.ljust(width) if at in (0, 6) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(aligned).rstrip()


def _cells(machine: Machine, line: Line) -> tuple[str, ...]:
    least_s = line.work.least_s(machine)
    return (
        line.title,
        f"{line.work.bytes / 1e6:,.0f} MB",
        f"{line.work.flops / 1e9:,.2f} G",
        f"{1e3 * least_s:,.1f} ms",
        f"{1e3 * line.took_s:,.1f} ms",
        f"{100 * least_s / line.took_s:.0f} %",
        f"of {_bound(machine, line.work)}",
        f"{line.tokens / line.took_s:,.0f}",
    )


COMMAND = Command(
    "roofline",
    "[--model MODEL] [options]",
    "measure how near steps come to what the machine allows",
    _EXAMPLES,
    _declare,
    _run,
)
