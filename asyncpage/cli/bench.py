"""`asyncpage bench`: measures a server, a model's steps, or the part of the engine that is not the model.

Each benchmark is a command of its own behind this word, in a file of its own.
"""

from __future__ import annotations

import argparse

from asyncpage.cli import bench_control_plane, bench_roofline, bench_serve, bench_speculation
from asyncpage.cli.command import Command, Environment

BENCHMARKS: tuple[Command, ...] = (
    bench_serve.COMMAND,
    bench_roofline.COMMAND,
    bench_control_plane.COMMAND,
    bench_speculation.COMMAND,
)

_EXAMPLES = """\
examples:
  asyncpage bench serve             any OpenAI-compatible server, by default the one at http://127.0.0.1:8000
  asyncpage bench roofline          a model's steps beside what this machine's memory and arithmetic allow
  asyncpage bench control-plane     the engine without a model: its own cost a step and a token
  asyncpage bench speculation       what guessing tokens ahead gains, an engine with it beside one without

'asyncpage bench NAME --help' shows a benchmark's flags and examples.
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    words = parser.add_subparsers(title="benchmarks", metavar="NAME", dest="benchmark", required=True)
    for benchmark in BENCHMARKS:
        own = words.add_parser(
            benchmark.name, help=benchmark.summary, description=benchmark.summary, epilog=benchmark.examples
        )
        benchmark.declare(own)
        own.usage = f"asyncpage bench {benchmark.name} {benchmark.words}"
        own.set_defaults(parser=own)


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    benchmark = next(benchmark for benchmark in BENCHMARKS if benchmark.name == arguments.benchmark)
    return benchmark.run(arguments, environment)


COMMAND = Command(
    "bench", "NAME [options]", "measure a server, a model's steps, or the control plane", _EXAMPLES, _declare, _run
)
