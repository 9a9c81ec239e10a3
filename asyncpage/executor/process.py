"""The far end of an executor: loads what it is told, then answers every step until it is told to leave.

Over the link, `actors/executor.py` sends `Load`, then `Step`, with what its rows must know (a `Lesson`) before it, and
`Shutdown`; this sends `Handshake` or `LoadFailed`, then one `StepDone` or `StepFailed` a step. The same loop runs in a
process of its own and, in-process, in a thread.

INVARIANT: every step gets one answer in order, except those of an epoch in which a step has failed: its rows are
gone, so the rest of that epoch is dropped.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from asyncpage.errors import AsyncpageError, LinkClosed, ProtocolError
from asyncpage.messages import (
    Handshake,
    LearnAdapter,
    LearnGrammar,
    LearnVocabulary,
    Lesson,
    Load,
    LoadFailed,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.link import Link


class Runner(Protocol):
    """A loaded model with its rows. Only the loop below calls it, one call at a time."""

    @property
    def handshake(self) -> Handshake:
        """What was loaded and what it can do."""
        ...

    def execute(self, step: Step) -> StepDone:
        """Do one step. A greater `step.epoch` than the last one's means: start with no rows.

        Whatever it raises fails the step; a row that fails alone belongs into `StepDone.failed`.
        """
        ...

    def learn(self, lesson: Lesson) -> None:
        """Take what rows of later steps may name. Must not raise for what cannot be used: its rows fail."""
        ...

    def close(self) -> None:
        """Let go of memory and files."""
        ...


def serve(link: Link, load_runner: Callable[[Load], Runner]) -> None:
    """Work for the near end of `link` until it says `Shutdown` or is gone. The caller closes the link.

    Errors: `ProtocolError` when the near end sends something that has no place here.
    """
    try:
        match link.wait(None):
            case Load() as load:
                runner = _load(link, load, load_runner)
            case Shutdown():
                return
            case other:
                raise ProtocolError(f"an executor's first message must be Load, found {type(other).__name__}")
        if runner is None:
            return
        try:
            link.send(runner.handshake)
            _answer_steps(link, runner)
        finally:
            runner.close()
    except LinkClosed:
        return


def _load(link: Link, load: Load, load_runner: Callable[[Load], Runner]) -> Runner | None:
    try:
        return load_runner(load)
    except AsyncpageError as error:
        link.send(LoadFailed(type(error).__name__, one_line(error)))
    except Exception as error:
        if _is_want_of_memory(error):
            text = (
                f"there is too little memory for this model and its KV pool ({one_line(error)}); free some, lower "
                "--num-kv-blocks or --kv-cache-bytes, or serve a smaller model"
            )
            link.send(LoadFailed("ExecutorError", text))
            return None
        # Nothing anybody foresaw: whoever mends it needs the traceback, whoever waits needs one line.
        _show(error)
        link.send(LoadFailed("ExecutorError", f"loading failed with {type(error).__name__}: {one_line(error)}"))
    return None


def _is_want_of_memory(error: Exception) -> bool:
    """Python says it with one type, the system with a number, and torch's allocator only in words."""
    is_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_system or isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _answer_steps(link: Link, runner: Runner) -> None:
    failed_epoch = -1
    while True:
        match link.wait(None):
            case Step() as step:
                if step.epoch <= failed_epoch:
                    continue
                try:
                    answer: StepDone | StepFailed = runner.execute(step)
                except Exception as error:
                    _show(error)
                    failed_epoch = step.epoch
                    answer = StepFailed(step.number, step.epoch, f"{type(error).__name__}: {one_line(error)}")
                link.send(answer)
            case LearnVocabulary() | LearnGrammar() | LearnAdapter() as lesson:
                runner.learn(lesson)
            case Shutdown():
                return
            case None:
                continue
            case other:
                raise ProtocolError(
                    f"an executor that has loaded takes no other Load and no answers, found {type(other).__name__}"
                )


def one_line(error: BaseException) -> str:
    """The text of an error on one line, cut where it stops being of use to a reader."""
    text = " ".join(str(error).split())
    return text if len(text) <= 1000 else text[:1000] + " ..."


def _show(error: Exception) -> None:
    with suppress(OSError, ValueError):  # a log that nobody reads any more must not cost the answer
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()
