"""Drafts from a smaller model with the same vocabulary, which runs ahead of the great one.

Its keys and values lie beside the great model's, in blocks of the same ids, so prefixes are shared, copied, saved and
preempted with them. It computes a prompt with the great model, and what comes after when drafts are asked for: where
they do not pay it costs nothing. It draws its drafts with the noise that the row's own tokens will be drawn with, and
the row's temperature, filters, biases and forbidden words, so that it agrees as often as the two models do.

The runner asks it before every forward pass. Method: speculative decoding (Leviathan et al. 2023, Chen et al. 2023).

INVARIANT: what it has computed of a row is never more than what the row has of it: drafts that fell are computed over.
A block that was published before this caught up holds a gap, which costs those who share it drafts and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import BatchShape, PersistentBatch
from asyncpage.executor.inputs import InputBuffers
from asyncpage.executor.sampler import Sampler
from asyncpage.executor.speculation.proposer import Drafts, no_drafts
from asyncpage.messages import Int32, NewRow
from asyncpage.models.model import Model

Int64 = NDArray[np.int64]


class DraftModel:
    """`shape`: the batch's. `tables`: for each layer group of `model`, the group of the batch whose blocks it uses.

    `vocab_size`: the great model's; ids that only one of the two has, as some pad their tables, are never drafted.
    """

    def __init__(
        self, model: Model, attention: PagedAttention, shape: BatchShape, tables: Sequence[int], vocab_size: int
    ) -> None:
        self.caches: Sequence[PagedAttention] = (attention,)
        self._model = model
        self._attention = attention
        # A row may be a token behind, as the last of drafts that all stood was not computed here.
        self._most_tokens = shape.max_tokens + shape.max_rows
        self._inputs = InputBuffers(replace(shape, max_tokens=self._most_tokens), attention.device, tables)
        self._sampler = Sampler(vocab_size, attention.device)
        self._vocab_size = vocab_size
        self._computed: Int32 = np.zeros(shape.max_rows, dtype=np.int32)

    def clear(self) -> None:
        self._sampler.clear()

    def add(self, new: NewRow) -> None:
        """What the row brings computed is computed here, too, as far as the block's last owner got."""
        sampling = replace(
            new.sampling, logprobs=None, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0
        )
        tokens = np.frombuffer(new.tokens, dtype="<i4")
        self._sampler.add(replace(new, sampling=sampling, constraint=None), tokens)
        if new.row >= len(self._computed):
            more = max(new.row + 1, 2 * len(self._computed)) - len(self._computed)
            self._computed = np.pad(self._computed, (0, more))
        self._computed[new.row] = new.computed

    def remove(self, row: int) -> None:
        self._sampler.remove(row)

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        ends = batch.computed[rows] + counts
        asked = np.clip(asked, 0, np.maximum(self._model.max_model_len - ends, 0))
        is_prompt = (batch.computed[rows] < batch.prompts[rows]) & (ends <= self._model.max_model_len)
        chosen = np.flatnonzero((asked > 0) | is_prompt)
        if not len(chosen):
            return no_drafts(len(rows))
        last_RE = self._catch_up(batch, rows[chosen], ends[chosen])
        drafting = np.flatnonzero(asked[chosen] > 0)
        if not len(drafting):
            return no_drafts(len(rows))
        index = torch.from_numpy(drafting).to(last_RE.device)
        return self._draft(batch, rows, asked, chosen[drafting], last_RE[index])

    def _catch_up(self, batch: PersistentBatch, rows: Int32, ends: Int32) -> torch.Tensor:
        """Compute each of `rows` [R] up to `ends` [R]; returns the state at each row's last token [R, E]."""
        begins = np.minimum(self._computed[rows], batch.computed[rows])
        last_RE: torch.Tensor | None = None
        while True:
            left = ends - begins
            before = np.cumsum(left) - left
            counts = np.clip(self._most_tokens - before, 0, left).astype(np.int32)
            some = np.flatnonzero(counts)
            hidden_TE, starts = self._forward(batch, rows[some], counts[some], begins[some])
            if last_RE is None:
                last_RE = hidden_TE.new_empty((len(rows), hidden_TE.shape[1]))
            begins = begins + counts
            done = np.flatnonzero(begins[some] == ends[some])
            places = torch.from_numpy((starts[done + 1] - 1).astype(np.int64)).to(hidden_TE.device)
            last_RE[torch.from_numpy(some[done]).to(hidden_TE.device)] = hidden_TE[places]
            if len(done) == len(some) and some[-1] == len(rows) - 1:
                self._computed[rows] = ends
                return last_RE

    def _draft(
        self, batch: PersistentBatch, rows: Int32, asked: Int32, drafting: Int64, last_SE: torch.Tensor
    ) -> Drafts:
        """Draw a draft after another for the rows at `drafting` [S], whose last states these are."""
        found = np.zeros(len(rows), dtype=np.int32)
        drawn: list[tuple[Int64, Int32]] = []
        level = 0
        while True:
            own = rows[drafting]
            known = batch.known[own] + level
            sampled = self._sampler.sample(
                own,
                (known - batch.prompts[own]).astype(np.int64),
                self._logits(last_SE),
                partial(_known_of, batch, level),
            )
            is_right = np.ones(len(own), dtype=np.bool_)
            is_right[[index for index, _ in sampled.failed]] = False
            batch.tokens[own, known] = sampled.tokens  # where the next forward pass here reads it
            drawn.append((drafting[is_right], sampled.tokens[is_right]))
            found[drafting[is_right]] += 1
            level += 1
            drafting = drafting[is_right & (asked[drafting] > level)]
            if not len(drafting):
                break
            own = rows[drafting]
            begins = batch.known[own] + level - 1
            last_SE, _ = self._forward(batch, own, np.ones(len(own), dtype=np.int32), begins)
            self._computed[own] = begins + 1
        members = np.concatenate([members for members, _ in drawn])
        tokens = np.concatenate([tokens for _, tokens in drawn])
        return Drafts(found, tokens[np.argsort(members, kind="stable")])

    def _forward(self, batch: PersistentBatch, rows: Int32, counts: Int32, begins: Int32) -> tuple[torch.Tensor, Int32]:
        inputs = self._inputs.pack(batch, rows, counts, begins)
        self._attention.plan(inputs.batches)
        tokens = inputs.tokens.clamp(max=self._model.vocab_size - 1)
        return self._model.forward(tokens, inputs.positions, self._attention.attend), inputs.starts

    def _logits(self, hidden_SE: torch.Tensor) -> torch.Tensor:
        """float32 [S, vocab_size of the great model]."""
        logits_SV = self._model.logits(hidden_SE)
        missing = self._vocab_size - logits_SV.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits_SV, (0, missing), value=-torch.inf)
        return logits_SV[:, : self._vocab_size].contiguous()


def _known_of(batch: PersistentBatch, drafts: int, row: int) -> Int32:
    """What the row knows with that many drafts behind it, a view."""
    return batch.tokens[row, : batch.known[row] + drafts]
