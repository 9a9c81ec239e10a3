"""A loaded encoder with its rows: makes vectors, keeps no KV.

The serve loop (`process`) calls it. Tokens of a prompt that come before its last chunk are only counted; the whole
prompt is computed in the step that brings its last token, so that the scheduler needs no other rules for it.

INVARIANT: a row's vector is made once, from its own prompt whole; what is computed at once is bounded by a step's
tokens, or one prompt where that is longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from asyncpage.errors import ProtocolError
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.pooler import NOT_NUMBERS, as_embedding, pool_whole
from asyncpage.messages import (
    EMPTY,
    Handshake,
    Int32,
    Lesson,
    NewRow,
    Pooled,
    Pooling,
    Step,
    StepDone,
)
from asyncpage.models.encoder import Encoder


class EncoderRunner:
    """Owns the model and the rows; see `process.Runner`."""

    def __init__(self, handshake: Handshake, model: Encoder, shape: BatchShape, device: torch.device) -> None:
        self.handshake = handshake
        self._model = model
        self._device = device
        self._batch = PersistentBatch(shape)
        self._poolings: dict[int, Pooling] = {}
        self._epoch = -1

    def execute(self, step: Step) -> StepDone:
        """Do one step. Errors: `ProtocolError` when it does not fit the rows; whatever the model raises."""
        started = time.perf_counter_ns()
        batch = self._batch
        failed = self._apply(step)
        rows, counts = batch.chosen(step)
        whole = rows[batch.computed[rows] + counts == batch.known[rows]]
        with torch.inference_mode():
            pooled = self._embed(whole, failed) if len(whole) else ()
        batch.advance(rows, counts)
        batch.is_out[whole] = True
        return StepDone(
            number=step.number,
            epoch=step.epoch,
            rows=EMPTY,
            counts=EMPTY,
            tokens=EMPTY,
            failed=tuple(failed.items()),
            elapsed_us=(time.perf_counter_ns() - started) // 1000,
            pooled=pooled,
        )

    def learn(self, lesson: Lesson) -> None:
        """Errors: `ProtocolError`: an encoder writes no answer that could follow anything, and runs no adapter."""
        raise ProtocolError(f"an encoder was sent {type(lesson).__name__}")

    def watch(self, put: Callable[[str, Any], Any]) -> None:
        """For whoever measures: `put("model", model)` gives what to use in its place."""
        self._model = put("model", self._model)

    def close(self) -> None:
        """The weights go with the runner."""

    def _apply(self, step: Step) -> dict[int, str]:
        """Bring the rows up to date; returns those that cannot be run, with the reason."""
        if step.epoch < self._epoch:
            raise ProtocolError(f"a step of epoch {step.epoch} came after epoch {self._epoch} had begun")
        if len(step.copies) + len(step.saves) + len(step.loads):
            raise ProtocolError("the step moves KV, and an encoder has none")
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._batch.clear()
            self._poolings.clear()
        self._batch.remove(step.removed)
        for row in step.removed.tolist():
            self._poolings.pop(row, None)
        failed = {}
        for new in step.added:
            reason = self._add(new)
            if reason is not None:
                failed[new.row] = reason
                self._batch.is_out[new.row] = True
        self._batch.place_blocks(step.blocks)
        return failed

    def _add(self, new: NewRow) -> str | None:
        tokens = self._batch.add(new)
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.handshake.vocab_size:
            return f"the prompt has a token id outside the vocabulary of {self.handshake.vocab_size}"
        if new.pooling is None:
            return "this model makes embeddings only and generates no text"
        self._poolings[new.row] = new.pooling
        return None

    def _embed(self, rows: Int32, failed: dict[int, str]) -> tuple[Pooled, ...]:
        """The vectors of these rows; one whose states are not numbers goes to `failed`."""
        batch = self._batch
        rows = rows[np.argsort(batch.known[rows], kind="stable")]  # equal lengths are attended to in one go
        pooled: list[Pooled] = []
        ends = np.cumsum(batch.known[rows])
        start = done = 0
        while start < len(rows):
            stop = max(start + 1, int(np.searchsorted(ends, done + batch.shape.max_tokens, side="right")))
            part, done = rows[start:stop], int(ends[stop - 1])
            start = stop
            lengths = batch.known[part].tolist()
            tokens = np.concatenate([batch.known_of(row) for row in part.tolist()])
            hidden_TE = self._model.encode(torch.from_numpy(tokens.astype(np.int64)).to(self._device), lengths)
            for row, hidden_PE in zip(part.tolist(), torch.split(hidden_TE, lengths), strict=True):
                pooling = self._poolings[row]
                embedding = as_embedding(pool_whole(hidden_PE, pooling), pooling)
                if embedding is None:
                    failed[row] = NOT_NUMBERS
                else:
                    pooled.append(Pooled(row, embedding))
        return tuple(pooled)
