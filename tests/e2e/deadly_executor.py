"""An executor that ends at once when a prompt's last token is 511: the kind of request that kills its executor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

from asyncpage.executor.__main__ import main
from asyncpage.executor.process import Runner
from asyncpage.messages import Handshake, Lesson, Load, Step, StepDone

DEADLY_TOKEN = 511


class DeadlyRunner:
    """The real runner, unless a deadly prompt is in the step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def handshake(self) -> Handshake:
        return self._runner.handshake

    def execute(self, step: Step) -> StepDone:
        for row in step.added:
            if np.frombuffer(row.tokens, dtype=np.int32)[row.prompt_tokens - 1] == DEADLY_TOKEN:
                os._exit(3)
        return self._runner.execute(step)

    def learn(self, lesson: Lesson) -> None:
        self._runner.learn(lesson)

    def close(self) -> None:
        self._runner.close()


def find_loader() -> Callable[[Load], Runner]:
    from asyncpage.executor.runner import load_runner

    return lambda load: DeadlyRunner(load_runner(load))


if __name__ == "__main__":
    main(sys.argv[1:], find_loader)
