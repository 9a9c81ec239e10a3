"""Rows that follow a grammar: where each stands in it, and the mask of the tokens that may come next.

The runner tells it of vocabulary, grammars, rows and tokens; the sampler asks for masks. A thread of its own does the
work, from the moment that a row's last token is known: beside the answer to a step, the wait for the next, and the
forward pass. What is not ready by then, and a moment later, is late: its row samples in a later step.

INVARIANT: a grammar that breaks a bound, or a token that does not follow it, fails its own row; a row's state depends
on its output tokens alone, so it comes again after a preemption or a restart; rows that follow none wait a moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from asyncpage.errors import ProtocolError
from asyncpage.grammar.automaton import DEAD, Automaton, Bits
from asyncpage.grammar.configuration import GrammarFull, GrammarLimit
from asyncpage.grammar.lexicon import Lexicon
from asyncpage.grammar.masks import MaskCache
from asyncpage.grammar.network import Network
from asyncpage.messages import Int32, LearnGrammar, LearnVocabulary, NewRow

MOST_BYTES = 256 << 20
"""Tables of automata that are kept for rows to come, all grammars together."""

MOST_LIVING_BYTES = 1 << 30
"""Tables of automata that rows follow at this moment, with those: so many rows may bring a grammar each."""

PATIENCE_S = 0.01
"""For which a step waits for masks: those of people's grammars take 1 to 6 ms when they are new, and 20 at the most."""

_NOT_TOLD = "the executor was not told of the grammar that this request follows"
_LEFT = "the answer has a token that its grammar does not allow"
_STUCK = "the grammar needs a text here that no token begins"
_TOO_MUCH = "the grammars that are followed at this moment take all the memory there is for them, this one the most"


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """What may come next. `bits`: a bit a token, end tokens among them; `only_ends`: nothing else may."""

    bits: Bits
    only_ends: bool


@dataclass(slots=True, eq=False)
class _Row:
    """`output`: what it has said so far. `answer`: what the sampler gets, or why the row has failed."""

    digest: bytes
    ends: frozenset[int]
    output: list[int]
    automaton: Automaton | None = None
    state: int = DEAD
    is_over: bool = False
    answer: Allowed | str = ""
    is_ready: bool = False
    job: Future[None] | None = field(default=None, repr=False)


class Grammars:
    """All grammars that this executor was told of, and the rows that follow one."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._thread: ThreadPoolExecutor | None = None
        self._rows: dict[int, _Row] = {}
        # From here on the thread's own.
        self._vocabulary: LearnVocabulary | None = None
        self._lexicon: Lexicon | None = None
        self._masks = MaskCache()
        self._networks: dict[bytes, bytes] = {}
        self._automata: OrderedDict[bytes, Automaton] = OrderedDict()
        self._living: WeakSet[Automaton] = WeakSet()  # those, and the ones that rows still follow

    # --- what the runner calls ----------------------------------------------------------------------------------------

    def learn(self, lesson: LearnVocabulary | LearnGrammar) -> None:
        """Take a vocabulary or a grammar; they are read when a row needs them."""
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
        self._rows.pop(row, None)

    def clear(self) -> None:
        """Forget every row; grammars are kept."""
        self._rows.clear()

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
            for row, _ in went_on:
                row.is_ready = False
            job = self._submit(self._go_on, went_on)
            for row, _ in went_on:
                row.job = job

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    # --- what the sampler calls ---------------------------------------------------------------------------------------

    def allowed(self, numbers: Sequence[int], *, have_company: bool) -> list[Allowed | str | None]:
        """What may come next in each of these rows, or why it has failed; None where that is not known yet.

        Waits a moment for all of them. `have_company`: others are in the step; without, it waits until one is known.
        """
        rows = [self._rows[number] for number in numbers]
        jobs = [row.job for row in rows if row.job is not None]
        until = ALL_COMPLETED
        while True:
            for job in wait(jobs, PATIENCE_S, until).done:
                job.result()  # what no grammar is to blame for is the step's
            if have_company or any(row.is_ready for row in rows):
                break
            until = FIRST_COMPLETED
        return [row.answer if row.is_ready else None for row in rows]

    # --- what the thread does -----------------------------------------------------------------------------------------

    def _submit(self, work: Callable[[Any], None], argument: object) -> Future[None]:
        if self._thread is None:  # most executors never need it
            self._thread = ThreadPoolExecutor(1, "grammar")
        return self._thread.submit(work, argument)

    def _learn(self, lesson: LearnVocabulary | LearnGrammar) -> None:
        match lesson:
            case LearnVocabulary():
                self._vocabulary = lesson
            case LearnGrammar():
                for digest in lesson.forget:
                    self._networks.pop(digest, None)
                    self._automata.pop(digest, None)
                self._networks[lesson.constraint.digest] = lesson.constraint.network

    def _begin(self, row: _Row) -> None:
        self._try(row, self._follow)
        self._make_room([row])

    def _go_on(self, went_on: Sequence[tuple[_Row, int]]) -> None:
        for row, token in went_on:
            row.output.append(token)
            if row.automaton is not None:
                self._try(row, self._continue)
            row.is_ready = True  # else it has failed, and is in the step that was under way
        self._make_room([row for row, _ in went_on])

    def _make_room(self, rows: Sequence[_Row]) -> None:
        """Where all grammars together take too much, those for rows to come go first, then rows, the greediest first.

        `rows`: which have just gone on, and made them what they are.
        """
        if sum(one.size_bytes for one in self._living) <= MOST_LIVING_BYTES:
            return
        self._automata.clear()
        for row in sorted(rows, key=lambda row: row.automaton.size_bytes if row.automaton else 0, reverse=True):
            if sum(one.size_bytes for one in self._living) <= MOST_LIVING_BYTES:
                return
            row.automaton, row.answer = None, _TOO_MUCH

    def _try(self, row: _Row, work: Callable[[_Row], None]) -> None:
        """Bring a row up to date; what goes wrong is its answer."""
        try:
            try:
                work(row)
            except GrammarFull:
                # The ways of other rows fill the automaton: this one goes its own again, in a fresh one.
                self._automata.pop(row.digest, None)
                self._follow(row)
        except (GrammarLimit, ProtocolError) as error:
            row.automaton, row.answer = None, str(error)
        row.is_ready = True

    def _follow(self, row: _Row) -> None:
        """All of its output, from the grammar's beginning."""
        automaton = row.automaton = self._automaton_of(row.digest)
        row.state, row.is_over = automaton.start, False
        for token in row.output:
            self._step(row, token)
        self._answer(row)

    def _continue(self, row: _Row) -> None:
        self._step(row, row.output[-1])
        self._answer(row)

    def _step(self, row: _Row, token: int) -> None:
        assert row.automaton is not None
        if token in row.ends and row.automaton.may_end(row.state):
            row.is_over = True  # the step that is under way may have it still
        elif not row.is_over:
            row.state = row.automaton.advance(row.state, token)

    def _answer(self, row: _Row) -> None:
        automaton, ends = row.automaton, row.ends
        assert automaton is not None
        if row.state == DEAD:
            row.answer = _LEFT
            return
        may_end = automaton.may_end(row.state)
        bits = np.zeros(self._mask_bytes, dtype=np.uint8) if row.is_over else automaton.mask(row.state).copy()
        for token in ends:
            bits[token >> 3] &= ~np.uint8(1 << (token & 7))
        only_ends = not bits.any()
        if may_end:
            for token in ends:
                bits[token >> 3] |= np.uint8(1 << (token & 7))
        elif only_ends:
            row.answer = _STUCK
            return
        row.answer = Allowed(bits, only_ends)

    @property
    def _mask_bytes(self) -> int:
        return (self._vocab_size + 7) // 8

    def _automaton_of(self, digest: bytes) -> Automaton:
        """Errors: `ProtocolError` for a grammar that was not told, or bytes that are no network; `GrammarLimit`."""
        automaton = self._automata.get(digest)
        if automaton is None:
            network = self._networks.get(digest)
            if network is None or self._vocabulary is None:
                raise ProtocolError(_NOT_TOLD)
            if self._lexicon is None:
                self._lexicon = _lexicon_of(self._vocabulary, self._vocab_size)
            automaton = Automaton(Network.from_bytes(network), self._lexicon, self._masks)
            self._automata[digest] = automaton
            self._living.add(automaton)
        self._automata.move_to_end(digest)
        while len(self._automata) > 1 and sum(one.size_bytes for one in self._automata.values()) > MOST_BYTES:
            self._automata.popitem(last=False)
        return automaton


def _lexicon_of(vocabulary: LearnVocabulary, vocab_size: int) -> Lexicon:
    ends = np.cumsum(vocabulary.lengths[:vocab_size])
    text, at, token_bytes = vocabulary.text, 0, []
    for end in ends.tolist():
        token_bytes.append(text[at:end])
        at = end
    return Lexicon(token_bytes, vocab_size)


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
