"""Forks one writer after another and kills each one line further into a send; prints what its reader saw.

Runs as a script, because a process that forks should have one thread. Usage: killed_writer.py KIND SCENARIO...
The outcomes are printed as JSON: by scenario and for each line, "none", "whole", or an error's text.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import numpy as np

from asyncpage.errors import AsyncpageError, LinkClosed
from asyncpage.messages import StepDone
from asyncpage.pipes import link as link_module
from asyncpage.pipes.link import Link, attach_link, create_link, create_socket_link

ROOM = os.path.dirname(link_module.__file__)
CAPACITY = 4096  # one record carries 1008 bytes of payload


def message(tokens: int) -> StepDone:
    column = np.arange(tokens, dtype=np.int32)
    return StepDone(7, 3, column[:1], np.array([tokens], np.int32), column)


# name: what is sent (and read) whole before, and then the tokens of the message whose sender dies
SCENARIOS: dict[str, tuple[tuple[int, ...], int]] = {
    "first_record": ((), 20),
    "later_record": ((5, 6), 20),
    "record_after_padding": ((200, 200, 200, 200), 200),  # 4 records of 880 bytes leave 576 at the end
    "several_records": ((10,), 600),
}


class Killer:
    """Ends this process with SIGKILL in front of the n-th line that the pipes execute."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        if event == "line":
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return self


def outcome(kind: str, scenario: str, lines: int) -> tuple[str, bool]:
    """What the near end saw, and whether the writer was killed before it was through."""
    near, far = create_socket_link() if kind == "socket" else create_link(CAPACITY, ordered=kind == "ordered")
    before, last = SCENARIOS[scenario]
    attached = attach_link(far.duplicate())
    for tokens in before:
        attached.send(message(tokens))
        assert near.wait() is not None
    child = os.fork()
    if child == 0:
        near.close()
        sys.settrace(Killer(lines))
        attached.send(message(last))
        sys.settrace(None)
        os._exit(0)
    attached.close()
    far.close()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = read(near, last)
    near.close()
    return seen, code == -signal.SIGKILL


def read(near: Link, tokens: int) -> str:
    """All that is there, which must end in `LinkClosed`."""
    whole = message(tokens)
    seen = "none"
    try:
        while (found := near.wait(10)) is not None:
            assert isinstance(found, StepDone), found
            assert seen == "none"
            assert np.array_equal(found.tokens, whole.tokens)
            assert np.array_equal(found.rows, whole.rows)
            assert np.array_equal(found.counts, whole.counts)
            seen = "whole"
    except LinkClosed:
        return seen
    except AsyncpageError as error:
        return f"{type(error).__name__}: {error}"
    return "silence"


def main() -> None:
    kind, *scenarios = sys.argv[1:]
    outcomes: dict[str, list[str]] = {}
    for scenario in scenarios:
        seen = outcomes[scenario] = []
        is_killed = True
        while is_killed:
            result, is_killed = outcome(kind, scenario, len(seen))
            seen.append(result)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
