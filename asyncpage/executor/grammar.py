"""Rows that follow a grammar: where each stands in it, and the mask of the tokens that may come next.

The runner tells it of vocabulary, grammars, rows and tokens; the sampler asks for masks. A thread of its own does the
work, from the moment that a row's last token is known: beside the answer to a step, the wait for the next, and the
forward pass. What is not ready by then, and a moment later, is late: its row samples in a later step.

INVARIANT: a grammar that breaks a bound, or a token that does not follow it, fails its own row; a row's state depends
on its output tokens alone, so it comes again after a preemption or a restart; rows that follow none wait a moment.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from asyncpage.errors import AsyncpageError, ProtocolError
from asyncpage.grammar.backend import Bits, Follower, Grammar, Reader
from asyncpage.grammar.backend_registry import load_backend
from asyncpage.grammar.builtin import BuiltinBackend
from asyncpage.grammar.network import MAGIC
from asyncpage.messages import Int32, LearnGrammar, LearnVocabulary, NewRow

BUILTIN = BuiltinBackend.name

MOST_BYTES = 256 << 20
"""What opened grammars take that are kept for rows to come, all together, as far as their backends know it."""

MOST_LIVING_BYTES = 1 << 30
"""What those take with the ones that rows follow at this moment: so many rows may bring a grammar each."""

PATIENCE_S = 0.01
"""For which a step waits for masks: those of people's grammars take 1 to 6 ms when they are new, and 20 at the most."""

MOST_LATE_S = 30.0
"""After which a step waits for a late row, whoever else is in it. Masks that are bounded are known long before. A mask
that hangs must cost this executor its step, and so its life: beside others its row would never have an end."""

SWITCH_S = 5e-5
"""After which the thread gives way. 320 small matrix products take 91 ms alone, 208 beside a busy thread, and 6,143
beside it with the interpreter's own 5 ms."""

_NOT_TOLD = "the executor was not told of the grammar that this request follows"
_LEFT = "the answer has a token that its grammar does not allow"
_STUCK = "the grammar needs a text here that no token begins"
_MISSHAPEN = "the grammar backend made a mask of another size than the vocabulary's"
_TOO_MUCH = "the grammars that are followed at this moment take all the memory there is for them, this one the most"


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """What may come next. `bits`: a bit a token, end tokens among them; `only_ends`: nothing else may."""

    bits: Bits
    only_ends: bool


@dataclass(slots=True, eq=False)
class _Row:
    """`output`: what it had said when it came. `answer`: what the sampler gets, or why the row has failed.

    `has_left`: nobody will ask, so what the thread had still to do for it is left undone. `since`: when the thread was
    given what it does now, by the monotonic clock.
    """

    digest: bytes
    ends: frozenset[int]
    output: list[int]
    grammar: Grammar | None = None
    follower: Follower | None = None
    is_over: bool = False
    answer: Allowed | str = ""
    is_ready: bool = False
    since: float = field(default_factory=time.monotonic)
    has_left: bool = False
    job: Future[None] | None = field(default=None, repr=False)

    def fail(self, reason: str) -> None:
        self.grammar, self.follower, self.answer = None, None, reason


class Grammars:
    """All grammars that this executor was told of, and the rows that follow one.

    `backend`: whose compiled grammars these are, but for those that say themselves that they are the built-in one's.
    """

    def __init__(self, vocab_size: int, backend: str = BUILTIN) -> None:
        self._vocab_size = vocab_size
        self._backend = backend
        self._thread: ThreadPoolExecutor | None = None
        self._rows: dict[int, _Row] = {}
        # From here on the thread's own.
        self._vocabulary: LearnVocabulary | None = None
        self._readers: dict[str, Reader] = {}
        self._compiled: dict[bytes, bytes] = {}
        self._opened: OrderedDict[bytes, Grammar] = OrderedDict()
        self._living: WeakSet[Grammar] = WeakSet()  # those, and the ones that rows still follow

    # --- what the runner calls ----------------------------------------------------------------------------------------

    def learn(self, lesson: LearnVocabulary | LearnGrammar) -> None:
        """Take a vocabulary, which is read at once, or a grammar, which is read when a row needs it."""
        self._submit(self._learn, lesson)

    def add(self, new: NewRow, tokens: Int32) -> None:
        """A request that follows a grammar moves into a row; `tokens` is everything that it knows."""
        if new.constraint is None:
            return
        output = tokens[new.prompt_tokens :].tolist()
        row = self._rows[new.row] = _Row(new.constraint.digest, frozenset(new.end_token_ids), output)
        row.job = self._submit(self._begin, row)

    def remove(self, row: int) -> None:
        """The request has left the row."""
        left = self._rows.pop(row, None)
        if left is not None:
            left.has_left = True

    def clear(self) -> None:
        """Forget every row; grammars are kept."""
        for row in list(self._rows):
            self.remove(row)

    def append(self, rows: Int32, tokens: Int32) -> None:
        """The runner kept these tokens, one a row: find out what may follow them."""
        if not self._rows:
            return
        went_on = [
            (row, token)
            for number, token in zip(rows.tolist(), tokens.tolist(), strict=True)
            if (row := self._rows.get(number)) is not None
        ]
        if went_on:
            now = time.monotonic()
            for row, _ in went_on:
                row.is_ready, row.since = False, now
            job = self._submit(self._go_on, went_on)
            for row, _ in went_on:
                row.job = job

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    # --- what the sampler calls ---------------------------------------------------------------------------------------

    def allowed(
        self, numbers: Sequence[int], *, have_company: bool, has_waited: bool = False
    ) -> list[Allowed | str | None]:
        """What may come next in each of these rows, or why it has failed; None where that is not known yet.

        Waits a moment for all of them. `have_company`: others are in the step; without, it waits until one is known.
        `has_waited`: the step has given other rows that moment. Rows that are late for too long are waited for.
        """
        rows = [self._rows[number] for number in numbers]
        jobs = [row.job for row in rows if row.job is not None]
        now = time.monotonic()
        for row in rows:
            if not row.is_ready and row.job is not None and now - row.since > MOST_LATE_S:
                row.job.result()
        patience_s = 0.0 if has_waited and have_company else PATIENCE_S
        until = ALL_COMPLETED
        while True:
            for job in wait(jobs, patience_s, until).done:
                job.result()  # what no grammar is to blame for is the step's
            if have_company or any(row.is_ready for row in rows):
                break
            until = FIRST_COMPLETED
        return [row.answer if row.is_ready else None for row in rows]

    # --- what the thread does -----------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[Any], None], argument: object) -> Future[None]:
        if self._thread is None:  # most executors never need it
            # A forward pass gives the interpreter away at each operation and would wait this long to have it back.
            sys.setswitchinterval(SWITCH_S)
            self._thread = ThreadPoolExecutor(1, "grammar")
        return self._thread.submit(work, argument)

    def _learn(self, lesson: LearnVocabulary | LearnGrammar) -> None:
        match lesson:
            case LearnVocabulary():
                self._vocabulary = lesson
                self._reader(self._backend)  # while the grammar is compiled that it is for
            case LearnGrammar():
                for digest in lesson.forget:
                    self._compiled.pop(digest, None)
                    self._opened.pop(digest, None)
                self._compiled[lesson.constraint.digest] = lesson.constraint.compiled

    def _begin(self, row: _Row) -> None:
        self._say(row, row.output)
        self._make_room([row])

    def _go_on(self, went_on: Sequence[tuple[_Row, int]]) -> None:
        for row, token in went_on:
            if row.follower is None:  # it has failed, and is in the step that was under way
                row.is_ready = True
            else:
                self._say(row, (token,))
        self._make_room([row for row, _ in went_on])

    def _make_room(self, rows: Sequence[_Row]) -> None:
        """Where all grammars together take too much, those for rows to come go first, then rows, the greediest first.

        `rows`: which have just gone on, and made them what they are.
        """
        if sum(one.size_bytes for one in self._living) <= MOST_LIVING_BYTES:
            return
        self._opened.clear()
        for row in sorted(rows, key=lambda row: row.grammar.size_bytes if row.grammar else 0, reverse=True):
            if sum(one.size_bytes for one in self._living) <= MOST_LIVING_BYTES:
                return
            row.fail(_TOO_MUCH)

    def _say(self, row: _Row, tokens: Sequence[int]) -> None:
        """Bring a row up to date; what goes wrong is its answer."""
        if row.has_left:
            row.grammar = row.follower = None
            return
        try:
            if row.follower is None:
                row.grammar = self._grammar(row.digest)
                row.follower = row.grammar.begin()
            for token in tokens:
                self._step(row, row.follower, token)
            row.answer = self._answer(row, row.follower)
        except Exception as error:  # a library's own among them: whatever it is, it is this row's
            row.fail(_reason(error))
        row.is_ready = True

    def _step(self, row: _Row, follower: Follower, token: int) -> None:
        if token in row.ends and follower.may_end():
            row.is_over = True  # the step that is under way may have it still
        elif not row.is_over and not follower.advance(token):
            raise ProtocolError(_LEFT)

    def _answer(self, row: _Row, follower: Follower) -> Allowed | str:
        size = (self._vocab_size + 7) // 8
        bits = np.zeros(size, dtype=np.uint8) if row.is_over else follower.mask().copy()
        if bits.shape != (size,):  # beside those of other rows it would fail the whole step
            raise ProtocolError(_MISSHAPEN)
        for token in row.ends:
            bits[token >> 3] &= ~np.uint8(1 << (token & 7))
        only_ends = not bits.any()
        if follower.may_end():
            for token in row.ends:
                bits[token >> 3] |= np.uint8(1 << (token & 7))
        elif only_ends:
            return _STUCK
        return Allowed(bits, only_ends)

    def _grammar(self, digest: bytes) -> Grammar:
        """Errors: `ProtocolError` for a grammar that was not told or cannot be read; `GrammarLimit`, `UsageError`."""
        grammar = self._opened.get(digest)
        if grammar is None:
            compiled = self._compiled.get(digest)
            if compiled is None or self._vocabulary is None:
                raise ProtocolError(_NOT_TOLD)
            grammar = self._reader(BUILTIN if compiled.startswith(MAGIC) else self._backend).open(compiled)
            self._opened[digest] = grammar
            self._living.add(grammar)
        self._opened.move_to_end(digest)
        while len(self._opened) > 1 and sum(one.size_bytes for one in self._opened.values()) > MOST_BYTES:
            self._opened.popitem(last=False)
        return grammar

    def _reader(self, backend: str) -> Reader:
        reader = self._readers.get(backend)
        if reader is None:
            assert self._vocabulary is not None
            token_bytes = _token_bytes(self._vocabulary)[: self._vocab_size]
            reader = self._readers[backend] = load_backend(backend).reader(token_bytes, self._vocab_size)
        return reader


def _reason(error: Exception) -> str:
    """Why a row has failed. The words of an error that is not ours may quote the grammar."""
    if isinstance(error, AsyncpageError):
        return str(error)
    return f"the grammar could not be followed: {type(error).__name__}"


def _token_bytes(vocabulary: LearnVocabulary) -> list[bytes]:
    text, at, token_bytes = vocabulary.text, 0, []
    for end in np.cumsum(vocabulary.lengths).tolist():
        token_bytes.append(text[at:end])
        at = end
    return token_bytes


def forbid(logits_SV: torch.Tensor, indices: Sequence[int], bits: Sequence[Bits]) -> None:
    """Give every token whose bit is not set minus infinity, in place, in the rows at `indices`."""
    vocab_size = logits_SV.shape[1]
    packed_RB = np.stack(bits)
    if logits_SV.device.type == "cpu":
        is_out_RV = np.unpackbits(packed_RB, axis=1, count=vocab_size, bitorder="little") == 0
        for index, is_out_V in zip(indices, torch.from_numpy(is_out_RV), strict=True):
            logits_SV[index].masked_fill_(is_out_V, float("-inf"))
        return
    # An eighth of the bytes cross the bus, and all rows in a few operations.
    device = logits_SV.device
    packed = torch.from_numpy(packed_RB).to(device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    is_out = ((packed[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size] == 0
    places = torch.tensor(indices, device=device)
    logits_SV[places] = logits_SV[places].masked_fill(is_out, float("-inf"))
