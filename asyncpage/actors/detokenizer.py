"""The detokenizer actor: tokens of a step in, text that may be sent out.

The scheduler sends `Expect` and `StepTokens`; it sends one `Texts` a step to each front end concerned, and `Ended`
to the scheduler when a stop string matched. What came in columns leaves in the same columns: log-probabilities are
not looked at here.

INVARIANT: an expected request has exactly one `Finish`, after its last text; what comes for it later is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asyncpage.actors.base import Actor, Continuation
from asyncpage.errors import UnknownMessage
from asyncpage.messages import (
    EMPTY,
    EMPTY_PAIRS,
    End,
    Ended,
    Expect,
    Finish,
    Float32,
    Int32,
    Logprobs,
    PromptLogprobs,
    RequestId,
    StepTokens,
    Texts,
    frontend_of,
)
from asyncpage.pipes.mailbox import Address
from asyncpage.text.detokenize import TextStreams
from asyncpage.text.token_logprobs import UNKNOWN
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.unison import NO_SLOTS, Slots, Unison

_ONE = np.ones(1, dtype=np.int32).tobytes()
_NO_FLOATS: Float32 = np.empty(0, dtype=np.float32)
_NO_LOGPROBS = Logprobs(_NO_FLOATS, EMPTY, EMPTY_PAIRS, EMPTY_PAIRS.astype(np.float32))

Columns = tuple[Int32, Int32, Logprobs | None]
"""counts [R], tokens [sum counts], log-probabilities of each token."""


class DetokenizerActor(Actor):
    """One answer a request, from its `Expect` to its `Finish`."""

    name = "detokenizer"

    def __init__(self, tokenizer: Tokenizer, scheduler: Address, frontends: Sequence[Address]) -> None:
        self._opener = TextStreams(tokenizer)
        self._scheduler = scheduler
        self._frontends = frontends
        self._unison = Unison()
        self._slots: dict[RequestId, int] = {}  # of streams in it
        self._answers: dict[RequestId, _Answer] = {}  # the same requests
        self._untold: set[RequestId] = set()  # of these, prompts whose log-probabilities are wanted and not begun
        # The last step's rows, all of them known, and their slots: most steps have the rows of the step before.
        self._last_requests: tuple[RequestId, ...] = ()
        self._last_slots: Slots = NO_SLOTS
        self._tokens = 0
        self._stop_matches = 0

    def receive(self, message: object) -> Continuation | None:
        match message:
            case StepTokens():
                self._step(message)
            case Expect():
                self._expect(message)
            case _:
                raise UnknownMessage(self, message)
        return None

    def stats(self) -> Mapping[str, float]:
        return {"streams": len(self._slots), "tokens": self._tokens, "stop_matches": self._stop_matches}

    def _expect(self, expect: Expect) -> None:
        request, sampling = expect.request, expect.sampling
        echo: Sequence[int] = np.frombuffer(expect.echo, dtype="<i4").tolist() if expect.echo else ()
        self._slots[request] = self._unison.join(self._opener.open(sampling, echo))
        self._answers[request] = _Answer(expect, echo[0] if echo else UNKNOWN)
        if sampling.prompt_logprobs is not None:
            self._untold.add(request)

    def _step(self, step: StepTokens) -> None:
        self._tokens += len(step.tokens)
        for started in step.started:
            if answer := self._answers.get(started.request):
                answer.cached_tokens = started.cached_tokens
        for end in step.ends:
            if answer := self._answers.get(end.request):
                answer.end = end
                hides_last = end.stop_token is not None and not answer.expect.sampling.include_stop_str_in_output
                self._unison.expect_end(self._slots[end.request], hides_last=hides_last)
        prompts = self._prompt_logprobs(step) if step.prompt_logprobs or self._untold else ()

        requests, slots, columns = self._known(step)
        if _are_ones(columns[0], columns[1]):
            texts, over = self._unison.feed(slots, columns[1])
        else:
            texts, over, columns = self._fed_some(slots, columns)
        if len(step.drafted):
            self._count_drafts(step, requests, columns[0])
        finishes = [self._finish(requests[at]) for at in over]
        if late := [end.request for end in step.ends if end.request in self._slots]:  # no token came for them
            requests, columns = self._last_words(late, requests, columns, texts)
            finishes += map(self._finish, late)
        if requests or finishes or prompts:
            counts, tokens, logprobs = columns
            self._send(Texts(requests, tuple(texts), counts, tokens, logprobs, prompts, tuple(finishes)))

    def _known(self, step: StepTokens) -> tuple[tuple[RequestId, ...], Slots, Columns]:
        """A step's requests that are known, their slots, and their columns."""
        requests, columns = step.requests, (step.counts, step.tokens, step.logprobs)
        if requests is self._last_requests:
            return requests, self._last_slots, columns
        try:
            slots = np.fromiter(map(self._slots.__getitem__, requests), np.intp, len(requests))
        except KeyError:  # some ended by a stop string while the scheduler did not know it yet
            is_known = np.array([request in self._slots for request in requests], dtype=np.bool_)
            requests = tuple(request for request in requests if request in self._slots)
            slots = np.array([self._slots[request] for request in requests], dtype=np.intp)
            return requests, slots, _of_rows(columns, is_known)
        self._last_requests, self._last_slots = requests, slots
        return requests, slots, columns

    def _fed_some(self, slots: Slots, columns: Columns) -> tuple[list[str], list[int], Columns]:
        """The streams' texts, which of them are over, and the columns without tokens that came behind a stop string."""
        counts, tokens, logprobs = columns
        ids = tokens.tolist()
        texts, over, kept, at = [], [], [], 0
        for row, (slot, count) in enumerate(zip(slots.tolist(), counts.tolist(), strict=True)):
            text, counted, is_over = self._unison.feed_some(slot, ids[at : at + count])
            texts.append(text)
            kept.append(counted)
            at += count
            if is_over:
                over.append(row)
        if sum(kept) < len(ids):
            left = np.array(kept, dtype=np.int32)
            behind = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)  # place in its row
            columns = (left, *_at(tokens, logprobs, behind < np.repeat(left, counts)))
        return texts, over, columns

    def _count_drafts(self, step: StepTokens, requests: tuple[RequestId, ...], counts: Int32) -> None:
        """Of the drafts that rows tried, those count as accepted whose tokens do, behind a stop string none."""
        drafted = dict(zip(step.requests, step.drafted.tolist(), strict=True))
        for request, count in zip(requests, counts.tolist(), strict=True):
            accepted = min(max(0, count - 1), drafted[request])
            self._answers[request].accepted_drafts += accepted
            self._answers[request].rejected_drafts += drafted[request] - accepted

    def _last_words(
        self, ended: Sequence[RequestId], requests: tuple[RequestId, ...], columns: Columns, texts: list[str]
    ) -> tuple[tuple[RequestId, ...], Columns]:
        """What those that ended without a token held back, behind the step's texts."""
        for request in ended:
            if text := self._unison.feed_some(self._slots[request], ())[0]:
                requests = (*requests, request)
                columns = (np.append(columns[0], np.int32(0)), *columns[1:])
                texts.append(text)
        return requests, columns

    def _prompt_logprobs(self, step: StepTokens) -> tuple[tuple[RequestId, PromptLogprobs], ...]:
        """Each position of a prompt once: one that is computed again after a preemption tells nothing new."""
        told: list[tuple[RequestId, PromptLogprobs]] = []
        news = (*(request for request, _ in step.prompt_logprobs), *step.requests, *(end.request for end in step.ends))
        for request in self._untold.intersection(news):
            # The prompt's first token, which the executor has no numbers for, comes before all others.
            self._untold.remove(request)
            first = np.array([self._answers[request].first_id], dtype=np.int32)
            told.append((request, PromptLogprobs(-1, 0, first, _NO_LOGPROBS)))
        for request, part in step.prompt_logprobs:
            if answer := self._answers.get(request):
                skip = max(0, answer.prompt_entries - part.start)
                if answer.expect.sampling.prompt_logprobs is not None and skip < len(part.tokens):
                    answer.prompt_entries = part.start + len(part.tokens)
                    told.append((request, _without(part, skip)))
        return tuple(told)

    def _finish(self, request: RequestId) -> Finish:
        """The one outcome. A stop string ends the answer before anything else can."""
        answer, stream = self._answers.pop(request), self._unison.leave(self._slots.pop(request))
        self._untold.discard(request)
        self._last_requests, self._last_slots = (), NO_SLOTS
        end = answer.end
        counts = (answer.expect.prompt_tokens, stream.tokens, answer.cached_tokens)
        drafts = (answer.accepted_drafts, answer.rejected_drafts)
        if stream.matched is not None:
            self._stop_matches += 1
            if end is None:
                self._scheduler.send(Ended(request, stream.tokens))
            return Finish(request, "stop", *counts, stream.matched, None, b"", *drafts)
        assert end is not None
        is_named = end.stop_token is not None and end.stop_token in answer.expect.sampling.stop_token_ids
        return Finish(
            request,
            end.reason,
            *counts,
            end.stop_token if is_named else None,
            end.failure,
            end.embedding,
            *drafts,
        )

    def _send(self, texts: Texts) -> None:
        if len(self._frontends) == 1:
            self._frontends[0].send(texts)
            return
        homes = [frontend_of(request) for request in texts.requests]
        for frontend, address in enumerate(self._frontends):
            prompts = tuple(part for part in texts.prompt_logprobs if frontend_of(part[0]) == frontend)
            finishes = tuple(finish for finish in texts.finishes if frontend_of(finish.request) == frontend)
            rows = np.array([home == frontend for home in homes], dtype=bool)
            if rows.any() or prompts or finishes:
                address.send(
                    Texts(
                        tuple(request for request, home in zip(texts.requests, homes, strict=True) if home == frontend),
                        tuple(text for text, home in zip(texts.texts, homes, strict=True) if home == frontend),
                        *_of_rows((texts.counts, texts.token_ids, texts.logprobs), rows),
                        prompts,
                        finishes,
                    )
                )


class _Answer:
    """A request that produces tokens. `first_id`: of its prompt. `prompt_entries`: prompt positions told so far."""

    __slots__ = (
        "accepted_drafts", "cached_tokens", "end", "expect", "first_id", "prompt_entries", "rejected_drafts",
    )  # fmt: skip

    def __init__(self, expect: Expect, first_id: int) -> None:
        self.expect = expect
        self.first_id = first_id
        self.cached_tokens = self.accepted_drafts = self.rejected_drafts = 0
        self.prompt_entries = 1  # the first token's, which is always told before the others
        self.end: End | None = None


def _are_ones(counts: Int32, tokens: Int32) -> bool:
    """Whether each row has one token."""
    return len(tokens) == len(counts) and counts.tobytes() == _ONE * len(counts)


def _of_rows(columns: Columns, rows: NDArray[np.bool_]) -> Columns:
    """The columns of the rows where `rows` [R] is set."""
    counts, tokens, logprobs = columns
    return (counts[rows], *_at(tokens, logprobs, np.repeat(rows, counts)))


def _at(tokens: Int32, logprobs: Logprobs | None, places: NDArray[np.bool_]) -> tuple[Int32, Logprobs | None]:
    """Tokens and log-probabilities where `places` [T] is set."""
    if logprobs is None:
        return tokens[places], None
    whole = logprobs
    picked = Logprobs(
        whole.token_logprobs[places], whole.ranks[places], whole.top_ids[places], whole.top_logprobs[places]
    )
    return tokens[places], picked


def _without(part: PromptLogprobs, skip: int) -> PromptLogprobs:
    """`part` without its first `skip` tokens."""
    if not skip:
        return part
    places = np.arange(len(part.tokens)) >= skip
    tokens, logprobs = _at(part.tokens, part.logprobs, places)
    assert logprobs is not None
    return replace(part, start=part.start + skip, tokens=tokens, logprobs=logprobs)
