"""Chooses the next token of every row that has caught up with what it knows.

The runner adds and removes rows, asks for tokens once a step and reports those it kept. Order of the stages: snapshot
for log-probabilities, allowed ids, bad words, min_tokens, logit bias, repetition, frequency and presence penalties,
grammar, greedy or temperature, min_p, top_k, top_p, draw. Rows that ask for none of it cost one argmax between them.

INVARIANT: a row's token depends on its own logits, settings, known tokens and seed; never on another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from asyncpage.executor import edits, extremes, logprobs, noise, penalties
from asyncpage.executor.filters import Filters
from asyncpage.executor.grammar import BUILTIN, Allowed, Grammars, forbid
from asyncpage.executor.race import Float64, Int64, Race
from asyncpage.messages import Int32, Logprobs, NewRow

COLDEST = 1e-5
"""Below this temperature a draw is greedy: tokens a ten-thousandth of a logit apart are decided anyway."""

_DRAWS, _FILTERS, _EDITS, _PENALTIES, _LOGPROBS, _GRAMMAR = 1, 2, 4, 8, 16, 32

_NO_TOKEN_LEFT = (
    "no token is left to choose: allowed_token_ids, bad_words, min_tokens and the grammar together forbid them all"
)
_NOT_NUMBERS = "the model gave logits that are not numbers (NaN, or all minus infinity)"


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One token a row, int32 [S], aligned with the rows asked for.

    Where `failed` names an index it means nothing, nor where `late` does: what those may say is not known yet.
    """

    tokens: Int32
    failed: tuple[tuple[int, str], ...] = ()
    logprobs: Logprobs | None = None
    late: tuple[int, ...] = ()


def join(parts: Sequence[Sampled]) -> Sampled:
    """Slices of one run of rows as one."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part.tokens) for part in parts]
    starts = [sum(lengths[:i]) for i in range(len(parts))]
    columns = None
    if any(part.logprobs is not None for part in parts):
        columns = logprobs.join(
            [part.logprobs or logprobs.blank(length, 0) for part, length in zip(parts, lengths, strict=True)]
        )
    return Sampled(
        tokens=np.concatenate([part.tokens for part in parts]),
        failed=tuple((start + at, why) for start, part in zip(starts, parts, strict=True) for at, why in part.failed),
        logprobs=columns,
        late=tuple(start + at for start, part in zip(starts, parts, strict=True) for at in part.late),
    )


class Sampler:
    """Settings and counters of all rows: columns for what many rows have, a mapping for what few have."""

    def __init__(self, vocab_size: int, device: torch.device, grammar_backend: str = BUILTIN) -> None:
        self.grammars = Grammars(vocab_size, grammar_backend)
        self._vocab_size = vocab_size
        self._device = device
        self._race = Race(vocab_size, device)
        self.clear()

    def clear(self) -> None:
        """Forget every row."""
        self._flags = np.zeros(0, dtype=np.uint8)
        self._temperatures = np.zeros(0, dtype=np.float64)
        self._streams = np.zeros(0, dtype=np.uint64)
        self._asked = np.zeros(0, dtype=np.int32)
        self._filters: dict[int, Filters] = {}
        self._edits: dict[int, edits.Edits] = {}
        self._penalties: dict[int, penalties.Penalties] = {}
        self.grammars.clear()

    def refusal(self, new: NewRow) -> str | None:
        """Why this request cannot be sampled here (an id outside the vocabulary), or None."""
        sampling = new.sampling
        for name, ids in (
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("logit_bias", [token for token, _ in sampling.logit_bias]),
            ("bad_words", [token for word in new.bad_word_ids for token in word]),
            ("end_token_ids", new.end_token_ids),
        ):
            for token in ids:
                if not 0 <= token < self._vocab_size:
                    return f"{name}: token id {token} is outside the vocabulary of {self._vocab_size}"
        return None

    def add(self, new: NewRow, tokens: Int32) -> None:
        """A request moves into a free row; `tokens` is everything it knows, its output so far among it."""
        row, sampling = new.row, new.sampling
        self._grow(row + 1)
        flags = 0
        if sampling.temperature >= COLDEST:
            flags |= _DRAWS
            if (filters := Filters.of(sampling)) is not None:
                flags |= _FILTERS
                self._filters[row] = filters
        if edits.asks(new):
            flags |= _EDITS
            self._edits[row] = edits.Edits(new, self._device)
        if penalties.asks(sampling):
            flags |= _PENALTIES
            self._penalties[row] = penalties.Penalties(sampling, tokens, new.prompt_tokens)
        if new.constraint is not None:
            flags |= _GRAMMAR
            self.grammars.add(new, tokens)
        if sampling.logprobs is not None:
            flags |= _LOGPROBS
            self._asked[row] = sampling.logprobs
        self._flags[row] = flags
        self._temperatures[row] = sampling.temperature
        self._streams[row] = noise.stream_of(new.seed)

    def remove(self, row: int) -> None:
        """The request has left the row."""
        for kept in (self._filters, self._edits, self._penalties):
            kept.pop(row, None)
        self.grammars.remove(row)

    def append(self, rows: Int32, tokens: Int32) -> None:
        """The runner kept these tokens, one a row."""
        if self._penalties:
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
                if (counts := self._penalties.get(row)) is not None:
                    counts.append(token)
        self.grammars.append(rows, tokens)

    def sample(
        self,
        rows: Int32,
        numbers: NDArray[np.int64],
        logits_SV: torch.Tensor,
        known: Callable[[int], Int32],
        *,
        have_company: bool = False,
        has_waited: bool = False,
    ) -> Sampled:
        """Choose a token for each of `rows` [S], of which it will be output token `numbers` [S], counted from 0.

        `logits_SV`: raw, float32, changed in place. `known(row)`: the row's tokens, asked for only where needed.
        `have_company`: other rows wait for this, too. `has_waited`: they have waited for masks in this step.
        """
        tokens, highest = extremes.best(logits_SV)
        flags = self._flags[rows]
        failed: dict[int, str] = {}
        if not np.isfinite(highest).all():
            for index in np.flatnonzero(~np.isfinite(highest)).tolist():
                if highest[index] == np.inf:  # overflow in the model: it means certainty, shared among equals
                    row_V = logits_SV[index]
                    row_V.copy_(torch.where(row_V == np.inf, 0.0, -np.inf))
                    highest[index] = 0.0
                else:
                    failed[index] = _NOT_NUMBERS
        if not flags.any():
            return Sampled(tokens.astype(np.int32), tuple(failed.items()))
        if failed:
            flags[list(failed)] = 0
        with _one_thread(self._device):
            allowed, late = self._allowed(rows, flags, failed, have_company=have_company, has_waited=has_waited)
            sampled = self._sample_with_settings(
                rows, numbers, logits_SV, known, tokens, highest, flags, failed, allowed
            )
        return replace(sampled, late=late) if late else sampled

    def _sample_with_settings(
        self,
        rows: Int32,
        numbers: NDArray[np.int64],
        logits_SV: torch.Tensor,
        known: Callable[[int], Int32],
        tokens: Int64,
        highest: NDArray[np.float32],
        flags: NDArray[np.uint8],
        failed: dict[int, str],
        allowed: dict[int, Allowed],
    ) -> Sampled:
        """The stages; `tokens` and `highest` are the greedy choice and its logit, `failed` the rows already lost."""
        asking = np.flatnonzero(flags & _LOGPROBS)
        raw = torch.log_softmax(self._rows_of(logits_SV, asking), dim=1) if len(asking) else None
        changed = np.flatnonzero(flags & (_EDITS | _PENALTIES | _GRAMMAR))
        if len(changed):
            for index in np.flatnonzero(flags & (_EDITS | _PENALTIES)).tolist():
                must_end = index in allowed and allowed[index].only_ends
                row, number = int(rows[index]), int(numbers[index])
                self._change(logits_SV[index], int(flags[index]), row, number, known, must_end)
            if allowed:
                forbid(logits_SV, list(allowed), [one.bits for one in allowed.values()])
            tokens[changed], highest[changed] = extremes.best(self._rows_of(logits_SV, changed))
            for index in changed[highest[changed] == -np.inf].tolist():
                failed[index] = _NO_TOKEN_LEFT
                flags[index] = 0
        drawing = np.flatnonzero(flags & _DRAWS)
        if len(drawing):
            self._draw(drawing, flags, rows, numbers, logits_SV, highest.astype(np.float64), tokens)
        chosen = tokens.astype(np.int32)
        columns = None
        if raw is not None:
            most = int(self._asked[rows[asking]].max())
            columns = logprobs.spread(logprobs.measure(raw, chosen[asking], most), asking, len(rows))
        return Sampled(chosen, tuple(sorted(failed.items())), columns)

    def _allowed(
        self, rows: Int32, flags: NDArray[np.uint8], failed: dict[int, str], *, have_company: bool, has_waited: bool
    ) -> tuple[dict[int, Allowed], tuple[int, ...]]:
        """What the rows with a grammar may say, by index, and the late ones; a row that failed in it is put down."""
        allowed: dict[int, Allowed] = {}
        asking = np.flatnonzero(flags & _GRAMMAR).tolist()
        if not asking:
            return allowed, ()
        late = []
        have_company = have_company or len(asking) < len(rows)
        answers = self.grammars.allowed(rows[asking].tolist(), have_company=have_company, has_waited=has_waited)
        for index, answer in zip(asking, answers, strict=True):
            if isinstance(answer, Allowed):
                allowed[index] = answer
                continue
            flags[index] = 0
            if answer is None:
                late.append(index)
            else:
                failed[index] = answer
        return allowed, tuple(late)

    def _change(
        self,
        logits_V: torch.Tensor,
        flags: int,
        row: int,
        number: int,
        known: Callable[[int], Int32],
        must_end: bool,
    ) -> None:
        if flags & _EDITS:
            self._edits[row].apply(logits_V, number, known(row), must_end=must_end)
        if flags & _PENALTIES:
            self._penalties[row].apply(logits_V)

    def _draw(
        self,
        drawing: Int64,
        flags: NDArray[np.uint8],
        rows: Int32,
        numbers: NDArray[np.int64],
        logits_SV: torch.Tensor,
        highest: Float64,
        tokens: Int64,
    ) -> None:
        """Replace the greedy choice in `tokens` at `drawing` by the winner of each row's race."""
        temperatures = self._temperatures[rows[drawing]]
        keys = noise.keys(self._streams[rows[drawing]], numbers[drawing])
        filtered = (flags[drawing] & _FILTERS) != 0
        for place in np.flatnonzero(filtered).tolist():
            index = int(drawing[place])
            logits_V, temperature = logits_SV[index], float(temperatures[place])
            ids, weights = self._filters[int(rows[index])].survivors(logits_V, float(highest[index]), temperature)
            tokens[index] = self._race.among(ids, weights, keys[place])
        free = np.flatnonzero(~filtered)
        if len(free):
            whole = drawing[free]
            tokens[whole] = self._race.over_all(
                self._rows_of(logits_SV, whole), highest[whole], temperatures[free], keys[free]
            )

    def _rows_of(self, logits_SV: torch.Tensor, indices: Int64) -> torch.Tensor:
        """Those rows, without a copy when they are all of them."""
        if len(indices) == len(logits_SV):
            return logits_SV
        return logits_SV[torch.from_numpy(indices).to(self._device)]

    def _grow(self, rows: int) -> None:
        if rows > len(self._flags):
            more = max(rows, 2 * len(self._flags), 64) - len(self._flags)
            self._flags = np.pad(self._flags, (0, more))
            self._temperatures = np.pad(self._temperatures, (0, more))
            self._streams = np.pad(self._streams, (0, more))
            self._asked = np.pad(self._asked, (0, more))


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Rows are too short to share: a second thread gains nothing, and waits for a core that others may hold.

    Measured beside busy neighbours: an exponential of a row took 40 us on one thread and up to 8 ms on two.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
