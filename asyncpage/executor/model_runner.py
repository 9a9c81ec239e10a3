"""A loaded model with its rows: does one step after another.

The serve loop (`process`) calls it and sends what it returns. One step is one forward pass over the packed tokens of
all its rows, then one sampling pass over those that have caught up with what they know.

INVARIANT: known and computed tokens change only after the forward pass has succeeded, and a row that fails alone
changes nobody else's.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from asyncpage.errors import ProtocolError
from asyncpage.executor import logprobs
from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.experts import Experts
from asyncpage.executor.grammar import BUILTIN
from asyncpage.executor.inputs import InputBuffers, Inputs
from asyncpage.executor.lora.bank import AdapterBank
from asyncpage.executor.pooler import Pooler
from asyncpage.executor.prompt_logprobs import NOT_NUMBERS, PromptMeter
from asyncpage.executor.sampler import Sampled, Sampler, join
from asyncpage.messages import (
    EMPTY,
    Handshake,
    Int32,
    LearnAdapter,
    Lesson,
    Logprobs,
    NewRow,
    Pooled,
    PromptLogprobs,
    Step,
    StepDone,
)
from asyncpage.models.model import Model

LOGITS_BYTES = 32 * 1024 * 1024
"""Logits that exist at once: what needs more of them is done in slices."""


class ModelRunner:
    """Owns the model, the KV pool, the rows and the sampler; see `process.Runner`."""

    def __init__(
        self,
        handshake: Handshake,
        model: Model,
        attention: PagedAttention,
        shape: BatchShape,
        experts: Experts,
        grammar_backend: str = BUILTIN,
        adapters: AdapterBank | None = None,
    ) -> None:
        self.handshake = handshake
        self._adapters = adapters
        self._model = model
        self._attention, self._experts = attention, experts
        device = attention.device
        self._batch = PersistentBatch(shape)
        self._inputs = InputBuffers(shape, device)
        self._sampler = Sampler(model.vocab_size, device, grammar_backend)
        self._epoch = -1
        self._slice = max(1, LOGITS_BYTES // (4 * model.vocab_size))
        self._prompts = PromptMeter(model.logits, self._slice)
        self._pooler = Pooler()

    def execute(self, step: Step) -> StepDone:
        """Do one step. Errors: `ProtocolError` when it does not fit the rows; whatever the model raises."""
        started = time.perf_counter_ns()
        with torch.inference_mode():
            failed = self._apply(step)
            rows, counts = self._batch.chosen(step)
            if not len(rows):
                return self._done(step, started, failed=failed)
            inputs = self._inputs.pack(self._batch, rows, counts)
            if self._adapters is not None:
                self._adapters.plan(rows, counts)
            hidden_TE = self._forward(inputs)
            prompt_logprobs, not_numbers = self._prompts.measure(self._batch, rows, counts, inputs.starts, hidden_TE)
            self._batch.is_out[list(not_numbers)] = True
            failed |= dict.fromkeys(not_numbers, NOT_NUMBERS)
            pooled, not_pooled = self._pooler.pool(self._batch, rows, counts, inputs.starts, hidden_TE)
            failed |= not_pooled
            self._batch.advance(rows, counts)
            caught_up = np.flatnonzero(self._batch.computed[rows] == self._batch.known[rows])
            if failed or pooled:
                caught_up = caught_up[~self._batch.is_out[rows[caught_up]]]
            if not len(caught_up):
                return self._done(step, started, prompt_logprobs=prompt_logprobs, failed=failed, pooled=pooled)
            samplers = rows[caught_up]
            have_company = len(samplers) < len(rows)
            sampled = self._sample(samplers, inputs.starts[caught_up + 1] - 1, hidden_TE, have_company=have_company)
            return self._keep(step, started, samplers, sampled, prompt_logprobs, failed, pooled)

    def learn(self, lesson: Lesson) -> None:
        """Take what rows of later steps may name. Errors: `ProtocolError` for an adapter slot that is not there."""
        if not isinstance(lesson, LearnAdapter):
            self._sampler.grammars.learn(lesson)
        elif self._adapters is None:
            raise ProtocolError("this executor was loaded without adapters, and is told of one")
        else:
            self._adapters.learn(lesson)

    def close(self) -> None:
        """Let go of the KV pool and of other ranks; the weights go with the runner."""
        self._sampler.grammars.close()
        self._attention.close()
        self._experts.close()
        if self._adapters is not None:
            self._adapters.close()

    def _apply(self, step: Step) -> dict[int, str]:
        """Bring rows, tables and copies up to date; returns rows that cannot be run, with the reason."""
        if step.epoch < self._epoch:
            raise ProtocolError(f"a step of epoch {step.epoch} came after epoch {self._epoch} had begun")
        if len(step.drafts):
            raise ProtocolError("the step brings draft tokens, and this executor does not speculate")
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._batch.clear()
            self._sampler.clear()
            self._prompts.clear()
            self._pooler.clear()
        self._batch.remove(step.removed)
        for row in step.removed.tolist():
            self._sampler.remove(row)
            self._prompts.remove(row)
            self._pooler.remove(row)
        failed = {}
        for new in step.added:
            reason = self._add(new)
            if reason is not None:
                failed[new.row] = reason
                self._batch.is_out[new.row] = True
        self._batch.place_blocks(step.blocks)
        self._batch.check_moves(step)
        # In this order: a block may be saved and then written anew, and a copy may begin in a block just loaded.
        if len(step.saves):
            self._attention.save_blocks(step.saves)
        if len(step.loads):
            self._attention.load_blocks(step.loads)
        if len(step.copies):
            self._attention.copy_tokens(step.copies)
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
        return reason

    def _forward(self, inputs: Inputs) -> torch.Tensor:
        self._attention.plan(inputs.batches)
        return self._model.forward(inputs.tokens, inputs.positions, self._attention.attend)

    def _sample(self, rows: Int32, places: Int32, hidden_TE: torch.Tensor, *, have_company: bool) -> Sampled:
        """A token for each of `rows`, from the hidden state at each of `places`."""
        batch = self._batch
        numbers = (batch.known[rows] - batch.prompts[rows]).astype(np.int64)
        last_SE = hidden_TE[torch.from_numpy(places.astype(np.int64)).to(hidden_TE.device)]
        parts: list[Sampled] = []
        for at in range(0, len(rows), self._slice):
            part = slice(at, at + self._slice)
            logits = self._model.logits(last_SE[part])
            # Rows of other slices are company, too: of those before it what can say something, behind it whatever may.
            says_something = any(len(done.late) < len(done.tokens) for done in parts)
            sampled = self._sampler.sample(
                rows[part],
                numbers[part],
                logits,
                batch.known_of,
                have_company=have_company or says_something or part.stop < len(rows),
                has_waited=any(done.late for done in parts),
            )
            parts.append(sampled)
        return join(parts)

    def _keep(
        self,
        step: Step,
        started: int,
        rows: Int32,
        sampled: Sampled,
        prompt_logprobs: tuple[PromptLogprobs, ...],
        failed: dict[int, str],
        pooled: tuple[Pooled, ...],
    ) -> StepDone:
        """Append what was sampled and answer; rows whose logits made no token are out, late ones a token behind."""
        tokens, columns = sampled.tokens, sampled.logprobs
        late = rows[list(sampled.late)] if sampled.late else EMPTY
        if sampled.failed or len(late):
            is_kept = np.ones(len(rows), dtype=np.bool_)
            is_kept[list(sampled.late)] = False
            for index, reason in sampled.failed:
                is_kept[index] = False
                failed[int(rows[index])] = reason
                self._batch.is_out[rows[index]] = True
            self._batch.take_back(late)
            rows, tokens = rows[is_kept], tokens[is_kept]
            columns = None if columns is None else logprobs.take(columns, np.flatnonzero(is_kept))
        self._batch.append(rows, tokens)
        self._sampler.append(rows, tokens)
        return self._done(step, started, rows, tokens, columns, prompt_logprobs, failed, pooled, late)

    def _done(
        self,
        step: Step,
        started: int,
        rows: Int32 = EMPTY,
        tokens: Int32 = EMPTY,
        columns: Logprobs | None = None,
        prompt_logprobs: tuple[PromptLogprobs, ...] = (),
        failed: dict[int, str] | None = None,
        pooled: tuple[Pooled, ...] = (),
        late: Int32 = EMPTY,
    ) -> StepDone:
        return StepDone(
            number=step.number,
            epoch=step.epoch,
            rows=rows,
            counts=np.ones(len(rows), dtype=np.int32),
            tokens=tokens,
            logprobs=columns,
            prompt_logprobs=prompt_logprobs,
            failed=tuple((failed or {}).items()),
            elapsed_us=(time.perf_counter_ns() - started) // 1000,
            pooled=pooled,
            late=tuple(late.tolist()),
        )
