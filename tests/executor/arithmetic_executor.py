"""An executor whose model is arithmetic: a row's next token is (31 * sum of its tokens + their number) mod 997.

Run as a script it is a whole executor process; `load_runner` serves in-process tests. `Load.settings` say how it
behaves: `fingerprint`, `num_kv_blocks`; and where it fails: `load_error`, `hang_in_load`, `exit_in_load`, and by the
number of a step `raise_at`, `hang_at`, `exit_at`, `lie_at`.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncpage import errors
from asyncpage.executor.process import Runner
from asyncpage.messages import Handshake, LayerGroup, LearnVocabulary, Lesson, Load, Step, StepDone


def next_token(tokens: list[int]) -> int:
    return (31 * sum(tokens) + len(tokens)) % 997


def hang() -> None:
    select.select([], [], [])


class ArithmeticRunner:
    def __init__(self, load: Load) -> None:
        self.settings = load.settings
        self.rows: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.epoch = 0
        self.is_closed = False
        self.vocabulary = b""
        self.grammars: set[bytes] = set()
        self.handshake = Handshake(
            fingerprint=self.settings.get("fingerprint", "arithmetic"),
            pid=os.getpid(),
            rank=load.rank,
            blocks=self.settings.get("num_kv_blocks") or 64,
            block_size=16,
            groups=(LayerGroup("full", 0, 2),),
            max_model_len=512,
            vocab_size=997,
            dtype="float32",
            kv_dtype="float32",
            device="cpu",
            attention_backend="none",
            load_ms=1,
            kv_bytes=0,
        )

    def execute(self, step: Step) -> StepDone:
        for name, act in (("raise_at", self.fail), ("hang_at", hang), ("exit_at", lambda: os._exit(3))):
            if self.settings.get(name) == step.number:
                act()
        if step.epoch > self.epoch:
            self.rows, self.computed, self.epoch = {}, {}, step.epoch
        for row in step.removed.tolist():
            del self.rows[row], self.computed[row]
        for added in step.added:
            if added.constraint is not None and not (added.constraint.digest in self.grammars and self.vocabulary):
                raise LookupError("a row follows a grammar that was not told")
            self.rows[added.row] = np.frombuffer(added.tokens, dtype=np.int32).tolist()
            self.computed[added.row] = added.computed
        sampled: dict[int, int] = {}
        for row, count in zip(step.rows.tolist(), step.counts.tolist(), strict=True):
            self.computed[row] += count
            if self.computed[row] == len(self.rows[row]):
                sampled[row] = next_token(self.rows[row])
                self.rows[row].append(sampled[row])
        number = -1 if self.settings.get("lie_at") == step.number else step.number
        return StepDone(
            number,
            step.epoch,
            np.array(list(sampled), dtype=np.int32),
            np.ones(len(sampled), dtype=np.int32),
            np.array(list(sampled.values()), dtype=np.int32),
        )

    def fail(self) -> None:
        raise ArithmeticError("the sum\nis wrong")

    def learn(self, lesson: Lesson) -> None:
        if isinstance(lesson, LearnVocabulary):
            self.vocabulary = lesson.text
        else:
            self.grammars.difference_update(lesson.forget)
            self.grammars.add(lesson.constraint.digest)

    def close(self) -> None:
        self.is_closed = True


def load_runner(load: Load) -> Runner:
    settings: Any = load.settings
    if settings.get("hang_in_load"):
        hang()
    if settings.get("exit_in_load"):
        os._exit(4)
    match settings.get("load_error"):
        case None:
            return ArithmeticRunner(load)
        case "FormatError":
            raise errors.FormatError("model.gguf", "token_embd.weight", "the file ends\nbefore it")
        case "ValueError":
            raise ValueError("nobody foresaw this")
        case "MemoryError":
            raise MemoryError("array of 9 GiB")
        case "ENOMEM":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        case "torch":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        case kind:
            raise getattr(errors, kind)(f"this is a {kind}")


def find_loader() -> Callable[[Load], Runner]:
    return load_runner


if __name__ == "__main__":
    from asyncpage.executor.__main__ import main

    main(sys.argv[1:], find_loader)
