"""`asyncpage replay`: what today's scheduler and KV manager decide about a recorded journal, or the journal as text.

Answers go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncpage.cli.command import Command, Environment
from asyncpage.clock import SystemClock
from asyncpage.errors import JournalError, UsageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.replay.why import Explained

_EXAMPLES = """\
examples:
  asyncpage serve --journal run.journal        record a server; end it when you have seen what you look for
  asyncpage replay run.journal                 decide again with today's code; stop at the first other decision
  asyncpage replay run.journal --why chatcmpl-4f2a
                                               what that request found in the cache, and why no more
  asyncpage replay run.journal --list | less   every message and decision, a line each

A journal holds what the scheduler and the KV manager were told and what they decided, with every time. It holds no
prompt and no answer: token ids are renamed at random unless the server was given --journal-tokens. Change a line of a
policy, replay, and see the first request that fares otherwise.

exit codes: 0 every decision is the same, 1 one differs, or the journal cannot be read or replayed
"""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what --journal wrote; older segments beside it are found")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print the journal, without a replay")
    what.add_argument("--why", metavar="REQUEST", help="explain a request's cache hits: its id as the client saw it")


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    from asyncpage.pipes.journal.reader import JournalReader

    path = Path(arguments.file)
    if not path.is_file():
        raise UsageError(f"there is no journal {path}; 'asyncpage serve --journal {path}' records one")
    reader = JournalReader(path)
    if arguments.list:
        from asyncpage.replay.listing import lines

        for line in lines(reader):
            print(line)
        return 0
    from asyncpage.replay.rerun import Rerun
    from asyncpage.replay.why import Explained

    rerun = Rerun(reader)
    clock = SystemClock()
    progress = Progress("replaying", "B", sys.stderr, clock.now)
    began = clock.now()

    def on_progress(done: int) -> None:
        progress.update(done, reader.size)

    try:
        if arguments.why is not None:
            explained = Explained(rerun, arguments.why, on_progress)
        else:
            difference = rerun.run(on_progress)
    finally:
        progress.close()
    if arguments.why is not None:
        return _tell_why(explained, arguments.why, has_tokens=reader.head.has_tokens)
    told = rerun.summary()
    amount = f"{told.steps} steps, {told.requests} requests, {told.decisions} decisions over {told.seconds:.3f} s"
    if difference is not None:
        print(difference)
        print(f"before it, {amount} were the same")
        return 1
    if reader.stopped:
        print(f"the recording stopped before its engine did: {reader.stopped}")
    print(f"every decision is the same: {amount}, replayed in {clock.now() - began:.3f} s")
    return 0


def _tell_why(explained: Explained, label: str, *, has_tokens: bool) -> int:
    if explained.difference is not None:
        print(f"{explained.difference}\nwhat follows is only true up to there", file=sys.stderr)
    if explained.answer is None:
        known = [name for name in dict.fromkeys(explained.labels.values()) if name]
        some = f"; it has {', '.join(known[:5])}{' and others' if len(known) > 5 else ''}" if known else ""
        text = "was never looked up in the cache" if explained.requests else f"is not in this journal{some}"
        raise JournalError(f"request {label} {text}")
    print(json.dumps(explained.answer, indent=2))
    if not has_tokens:
        print("token ids are renamed, as they are in the journal", file=sys.stderr)
    return 0


COMMAND = Command(
    "replay",
    "FILE [settings]",
    "decide a recorded journal again with today's code, or read it",
    _EXAMPLES,
    _declare,
    _run,
)
