"""A loaded model with its rows: does one step after another.

The serve loop (`process`) calls it and sends what it returns. One step is one forward pass over the packed tokens of
all its rows, drafts among them, then one sampling pass over those that have caught up with what they know.

INVARIANT: known and computed tokens change only after the forward pass has succeeded, and a row that fails alone
changes nobody else's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from asyncpage.errors import ProtocolError
from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.experts import Experts
from asyncpage.executor.grammar import BUILTIN
from asyncpage.executor.inputs import InputBuffers, Inputs
from asyncpage.executor.lora.bank import AdapterBank
from asyncpage.executor.pooler import Pooler
from asyncpage.executor.prompt_logprobs import NOT_NUMBERS, PromptMeter
from asyncpage.executor.sampler import Sampler
from asyncpage.executor.sampling_pass import NOTHING, Outcome, SamplingPass
from asyncpage.executor.speculation.proposer import Proposer
from asyncpage.messages import (
    EMPTY,
    Handshake,
    Int32,
    LearnAdapter,
    Lesson,
    NewRow,
    Pooled,
    PromptLogprobs,
    Step,
    StepDone,
)
from asyncpage.models.model import Model
from asyncpage.models.stack import Stack

LOGITS_BYTES = 32 * 1024 * 1024
"""Logits that exist at once: what needs more of them is done in slices."""


class ModelRunner:
    """Owns the model, the KV pool, the rows and the sampler; see `process.Runner`. `proposer`: makes drafts, if any."""

    def __init__(
        self,
        handshake: Handshake,
        model: Model,
        attention: PagedAttention,
        shape: BatchShape,
        experts: Experts,
        grammar_backend: str = BUILTIN,
        adapters: AdapterBank | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.handshake = handshake
        self._adapters = adapters
        self._model = model
        self._attention, self._experts = attention, experts
        device = attention.device
        self._batch = PersistentBatch(shape)
        self._inputs = InputBuffers(shape, device)
        self._sampler = Sampler(model.vocab_size, device, grammar_backend)
        self._proposer = proposer
        self._caches = (attention, *(() if proposer is None else proposer.caches))
        self._epoch = -1
        self._positions = max(1, LOGITS_BYTES // (4 * model.vocab_size))
        self._prompts = PromptMeter(model.logits, self._positions)
        self._sampling = self._sampling_pass()
        self._pooler = Pooler()

    def execute(self, step: Step) -> StepDone:
        """Do one step. Errors: `ProtocolError` when it does not fit the rows; whatever the model raises."""
        started = time.perf_counter_ns()
        with torch.inference_mode():
            failed = self._apply(step)
            rows, counts = self._batch.chosen(step)
            if not len(rows):
                return self._done(step, started, NOTHING, failed=failed)
            drafted, draft_us = EMPTY, 0
            if self._proposer is not None:
                counts, drafted, draft_us = self._draft(self._proposer, rows, counts)
            inputs = self._inputs.pack(self._batch, rows, counts)
            if self._adapters is not None:
                self._adapters.plan(rows, counts)
            hidden_TE = self._forward(inputs)
            prompt_logprobs, not_numbers = self._prompts.measure(self._batch, rows, counts, inputs.starts, hidden_TE)
            self._batch.is_out[list(not_numbers)] = True
            failed |= dict.fromkeys(not_numbers, NOT_NUMBERS)
            pooled, not_pooled = self._pooler.pool(self._batch, rows, counts, inputs.starts, hidden_TE)
            failed |= not_pooled
            begins = self._batch.computed[rows]
            self._batch.advance(rows, counts)
            caught_up = np.flatnonzero(self._batch.computed[rows] >= self._batch.known[rows])
            if failed or pooled:
                caught_up = caught_up[~self._batch.is_out[rows[caught_up]]]
            outcome = NOTHING
            if len(caught_up):
                own = drafted[caught_up] if len(drafted) else np.zeros(len(caught_up), dtype=np.int32)
                places = inputs.starts[caught_up + 1] - 1 - own
                have_company = len(caught_up) < len(rows)
                outcome = self._sampling.run(rows[caught_up], own, places, hidden_TE, have_company=have_company)
            if self._proposer is not None:
                self._proposer.observe(self._batch, rows, begins, inputs.starts, hidden_TE)
            return self._done(step, started, outcome, prompt_logprobs, failed, pooled, draft_us)

    def learn(self, lesson: Lesson) -> None:
        """Take what rows of later steps may name. Errors: `ProtocolError` for an adapter slot that is not there."""
        if not isinstance(lesson, LearnAdapter):
            self._sampler.grammars.learn(lesson)
        elif self._adapters is None:
            raise ProtocolError("this executor was loaded without adapters, and is told of one")
        else:
            self._adapters.learn(lesson)

    def watch(self, put: Callable[[str, Any], Any]) -> None:
        """For whoever measures: `put(name, part)` gives what to use in the place of model, backends and sampler.

        A model that runs by lists is given as its parts, one by one.
        """
        parts = self._model.decoder if isinstance(self._model, Stack) else self._model
        self._model, self._sampler = put("model", parts), put("sampler", self._sampler)
        self._sampling = self._sampling_pass()
        self._attention.watch(put)

    def close(self) -> None:
        """Let go of the KV pool and of other ranks; the weights go with the runner."""
        self._sampler.grammars.close()
        for cache in self._caches:
            cache.close()
        self._experts.close()
        if self._adapters is not None:
            self._adapters.close()

    def _sampling_pass(self) -> SamplingPass:
        return SamplingPass(self._batch, self._sampler, self._model.logits, self._positions)

    def _apply(self, step: Step) -> dict[int, str]:
        """Bring rows, tables and copies up to date; returns rows that cannot be run, with the reason."""
        if step.epoch < self._epoch:
            raise ProtocolError(f"a step of epoch {step.epoch} came after epoch {self._epoch} had begun")
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._batch.clear()
            self._sampler.clear()
            self._prompts.clear()
            self._pooler.clear()
            if self._proposer is not None:
                self._proposer.clear()
        self._batch.remove(step.removed)
        for row in step.removed.tolist():
            self._sampler.remove(row)
            self._prompts.remove(row)
            self._pooler.remove(row)
            if self._proposer is not None:
                self._proposer.remove(row)
        failed = {}
        for new in step.added:
            reason = self._add(new)
            if reason is not None:
                failed[new.row] = reason
                self._batch.is_out[new.row] = True
        self._batch.place_blocks(step.blocks)
        self._batch.check_moves(step)
        # In this order: a block may be saved and then written anew, and a copy may begin in a block just loaded.
        for cache in self._caches:
            if len(step.saves):
                cache.save_blocks(step.saves)
            if len(step.loads):
                cache.load_blocks(step.loads)
            if len(step.copies):
                cache.copy_tokens(step.copies)
        return failed

    def _add(self, new: NewRow) -> str | None:
        tokens = self._batch.add(new)
        vocab_size = self.handshake.vocab_size
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
            return f"the prompt has a token id outside the vocabulary of {vocab_size}"
        reason = self._sampler.refusal(new)
        if self._adapters is not None:
            reason = reason or self._adapters.add(new.row, new.adapter_slot)
        elif new.adapter_slot:
            raise ProtocolError(f"row {new.row} asks for adapter slot {new.adapter_slot}; this executor runs none")
        if reason is None:
            self._sampler.add(new, tokens)
            self._prompts.add(new, len(tokens))
            self._pooler.add(new)
            if self._proposer is not None:
                self._proposer.add(new)
        return reason

    def _draft(self, proposer: Proposer, rows: Int32, counts: Int32) -> tuple[Int32, Int32, int]:
        """Place drafts: what each row computes now, how many of that are drafts, and the time that it took."""
        started = time.perf_counter_ns()
        asked = np.maximum(self._batch.computed[rows] + counts - self._batch.known[rows], 0)
        needed = counts - asked
        asked = np.where(self._batch.is_draftless[rows], 0, asked)
        drafts = proposer.propose(self._batch, rows, needed, asked)
        self._batch.place_drafts(rows, drafts.counts, drafts.tokens)
        return needed + drafts.counts, drafts.counts, (time.perf_counter_ns() - started) // 1000

    def _forward(self, inputs: Inputs) -> torch.Tensor:
        self._attention.plan(inputs.batches)
        return self._model.forward(inputs.tokens, inputs.positions, self._attention.attend)

    def _done(
        self,
        step: Step,
        started: int,
        outcome: Outcome,
        prompt_logprobs: tuple[PromptLogprobs, ...] = (),
        failed: Mapping[int, str] = MappingProxyType({}),
        pooled: tuple[Pooled, ...] = (),
        draft_us: int = 0,
    ) -> StepDone:
        return StepDone(
            number=step.number,
            epoch=step.epoch,
            rows=outcome.rows,
            counts=outcome.counts,
            tokens=outcome.tokens,
            logprobs=outcome.logprobs,
            prompt_logprobs=prompt_logprobs,
            failed=(*failed.items(), *outcome.failed.items()),
            elapsed_us=(time.perf_counter_ns() - started) // 1000,
            pooled=pooled,
            late=outcome.late,
            drafted=outcome.drafted if outcome.drafted.any() else EMPTY,
            draft_us=draft_us,
        )
