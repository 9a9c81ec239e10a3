"""`asyncpage fetch`: puts the demo model into the cache folder, once; later starts need no network.

INVARIANT: standard output holds the file's path and nothing else, so that scripts can use it.
"""

from __future__ import annotations

import argparse
import sys

from asyncpage.cli.command import Command, Environment
from asyncpage.clock import SystemClock
from asyncpage.errors import UsageError
from asyncpage.progress import Progress

_EXAMPLES = """\
examples:
  asyncpage fetch demo
  ASYNCPAGE_CACHE=/data/models asyncpage fetch demo

The demo model is SmolLM2-135M-Instruct (98 MB, Apache-2.0). Other models are not fetched: give their path to
'asyncpage serve'.
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="demo", nargs="?", default="demo", help="what to fetch")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.what != "demo":
        raise UsageError(
            f"only the demo model is fetched, got {arguments.what!r}; type 'asyncpage fetch demo', or give the path "
            "of a model file to 'asyncpage serve'"
        )
    from asyncpage.store import fetch_demo

    progress = Progress("demo model", "B", sys.stderr, SystemClock().now)
    try:
        path = fetch_demo(progress.update)
    finally:
        progress.close()
    print(path)
    return 0


COMMAND = Command("fetch", "demo", "fetch the demo model into the cache folder", _EXAMPLES, _declare, _run)
