"""Runs many command lines that must fail, one after the other in this process: `asyncpage serve` as a user types it.

    python many_starts.py < [[argument, ...], ...]

Prints a list of {code, seconds, log, grown} as JSON: exit code, what was said, and how much the peak of memory grew.
A command line that does not fail would serve for ever; whoever runs this sets a time limit.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from typing import Any

from asyncpage.cli.main import main


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(arguments: list[str]) -> dict[str, Any]:
    before, started = peak_bytes(), time.monotonic()
    with tempfile.TemporaryFile() as said:
        kept = [os.dup(1), os.dup(2)]
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            code: Any = main(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, copy in enumerate(kept, start=1):
                os.dup2(copy, number)
                os.close(copy)
        seconds = time.monotonic() - started
        said.seek(0)
        log = said.read().decode(errors="replace")
    return {"code": code, "seconds": seconds, "log": log, "grown": peak_bytes() - before}


if __name__ == "__main__":
    print(json.dumps([run(arguments) for arguments in json.load(sys.stdin)]))
