"""Lets a model write texts, and keeps its states at every token: what a draft head learns from.

The training asks. Prompts come from an iterator, which is asked for the next when a row is free: what has been written
may lead to it. As many rows as there are write at once.

INVARIANT: a text comes with a state for every token but its last, of the very pass that computed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ModelError
from asyncpage.executor.attention import PagedAttention
from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.runner import load_runner
from asyncpage.executor.speculation.proposer import Drafts, no_drafts
from asyncpage.messages import Int32, Load, NewRow, RequestId, Step


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text begins with, and how it goes on: up to one of `ends`, or for `most` tokens."""

    tokens: tuple[int, ...]
    most: int
    temperature: float
    ends: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """`tokens` [N], the prompt's among them; `states` float16 [N - 1, E] at all but the last."""

    prompt: Prompt
    tokens: Int32
    states: torch.Tensor

    @property
    def has_ended(self) -> bool:
        """Whether its last token is one that ends it."""
        return int(self.tokens[-1]) in self.prompt.ends


class TextWriter:
    """`settings`: those of a `Load`. `rows`: texts at once, of at most `longest` tokens. Close it."""

    def __init__(self, settings: Mapping[str, Any], rows: int, longest: int) -> None:
        self._budget = settings["max_num_batched_tokens"]
        pool = {"num_kv_blocks": None, "kv_cache_bytes": None, "max_num_seqs": rows, "max_model_len": longest}
        self._recorder = _Recorder(rows, longest)
        self._runner = load_runner(Load({**settings, **pool}), self._recorder)
        handshake = self._runner.handshake
        self.hidden_size = handshake.hidden_size
        shape = len(handshake.groups), -(-longest // handshake.block_size)
        self._rows = min(rows, (handshake.blocks - 1) // math.prod(shape))  # fewer where memory is short
        ids = np.arange(1, 1 + self._rows * math.prod(shape), dtype=np.int32)
        self._tables = ids.reshape(self._rows, *shape)
        self._longest = longest
        self._number = self._epoch = 0

    def close(self) -> None:
        self._runner.close()

    def write(self, prompts: Iterator[Prompt], has_time: Callable[[], bool] = lambda: True) -> Iterator[Text]:
        """Texts in the order in which they end; when there is no time left, those begun, as far as they came.

        Errors: `ModelError` when the model makes no token.
        """
        self._epoch += 1
        living: dict[int, Prompt] = {}
        known: dict[int, list[int]] = {}
        computed: dict[int, int] = {}
        removed: list[int] = []
        is_over = False
        while True:
            added = []
            while not is_over and len(living) < self._rows:
                try:
                    prompt = next(prompts)
                except StopIteration:
                    is_over = True
                    break
                row = next(row for row in range(self._rows) if row not in living)
                living[row], known[row], computed[row] = prompt, list(prompt.tokens), 0
                added.append(self._new_row(row, prompt))
            if not living:
                return
            counts = self._counts(known, computed)
            self._number += 1
            rows = np.array(list(counts), dtype=np.int32)
            done = self._runner.execute(
                Step(
                    self._number,
                    self._epoch,
                    rows,
                    np.array(list(counts.values()), dtype=np.int32),
                    removed=np.array(removed, dtype=np.int32),
                    added=tuple(added),
                )
            )
            for _, reason in done.failed:
                raise ModelError(f"the model cannot write: {reason}")
            removed = []
            for row, count in counts.items():
                computed[row] += count
            for row, token in zip(done.rows.tolist(), done.tokens.tolist(), strict=True):
                known[row].append(token)
                prompt = living[row]
                written = len(known[row]) - len(prompt.tokens)
                if token in prompt.ends or written >= prompt.most or len(known[row]) >= self._longest:
                    removed.append(row)
            if not has_time():
                removed, is_over = [row for row in living if computed[row] >= len(living[row].tokens)], True
                living = {row: living[row] for row in removed}
            for row in removed:
                tokens = np.array(known.pop(row), dtype=np.int32)
                del computed[row]
                yield Text(living.pop(row), tokens, self._recorder.states(row, len(tokens) - 1))

    def _counts(self, known: Mapping[int, list[int]], computed: Mapping[int, int]) -> dict[int, int]:
        """What each row computes in the next step: those that write first, prompts with what is left."""
        wants = {row: len(tokens) - computed[row] for row, tokens in known.items()}
        left = self._budget
        counts = {}
        for row in sorted(wants, key=lambda row: wants[row]):
            count = min(wants[row], left)
            if count:
                counts[row] = count
                left -= count
        return counts

    def _new_row(self, row: int, prompt: Prompt) -> NewRow:
        return NewRow(
            row,
            RequestId(row),
            np.array(prompt.tokens, dtype=np.int32).tobytes(),
            len(prompt.tokens),
            0,
            tuple(table.tobytes() for table in self._tables[row]),
            SamplingParams(temperature=prompt.temperature),
            prompt.seed,
            end_token_ids=prompt.ends,
        )


class _Recorder:
    """A `Proposer` that has nothing to propose and remembers what it is shown."""

    caches: Sequence[PagedAttention] = ()

    def __init__(self, rows: int, longest: int) -> None:
        self._rows, self._longest = rows, longest
        self._states_RLE: torch.Tensor | None = None

    def states(self, row: int, count: int) -> torch.Tensor:
        assert self._states_RLE is not None
        return self._states_RLE[row, :count].clone()

    def clear(self) -> None: ...

    def add(self, new: NewRow) -> None: ...

    def remove(self, row: int) -> None: ...

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        return no_drafts(len(rows))

    def observe(
        self, batch: PersistentBatch, rows: Int32, begins: Int32, starts: Int32, hidden_TE: torch.Tensor
    ) -> None:
        if self._states_RLE is None:
            self._states_RLE = torch.zeros((self._rows, self._longest, hidden_TE.shape[1]), dtype=torch.float16)
        counts = starts[1:] - starts[:-1]
        owners = np.repeat(np.arange(len(rows)), counts)
        places = np.arange(len(owners)) + (begins - starts[:-1])[owners]
        index = torch.from_numpy(rows[owners].astype(np.int64)), torch.from_numpy(places.astype(np.int64))
        self._states_RLE[index] = hidden_TE.to("cpu", torch.float16)
