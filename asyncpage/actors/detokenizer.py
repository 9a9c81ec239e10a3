"""The detokenizer actor: tokens of a step in, text that may be sent out.

The scheduler sends `Expect` and `StepTokens`; it sends one `Texts` a step to each front end concerned, and `Ended`
to the scheduler when a stop string matched.

INVARIANT: an expected request has exactly one `Finish`, after its last text; what comes for it later is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from asyncpage.actors.base import Actor, Continuation
from asyncpage.errors import UnknownMessage
from asyncpage.messages import (
    End,
    Ended,
    Expect,
    Finish,
    Logprobs,
    PromptLogprobs,
    RequestId,
    StepTokens,
    Texts,
    TokenLogprob,
    frontend_of,
)
from asyncpage.pipes.mailbox import Address
from asyncpage.text.detokenize import TextStream, feed_one_each
from asyncpage.text.token_logprobs import UNKNOWN, first_prompt_entry, prompt_entries, token_logprobs
from asyncpage.text.tokenizer import Tokenizer


class DetokenizerActor(Actor):
    """One answer a request, from its `Expect` to its `Finish`."""

    name = "detokenizer"

    def __init__(self, tokenizer: Tokenizer, scheduler: Address, frontends: Sequence[Address]) -> None:
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._frontends = frontends
        self._answers: dict[RequestId, _Answer] = {}
        # Those that have begun and want no logprobs: nearly all, nearly always.
        self._plain: dict[RequestId, TextStream] = {}
        self._tokens = 0
        self._stop_matches = 0

    def receive(self, message: object) -> Continuation | None:
        match message:
            case StepTokens():
                self._tokens += len(message.tokens)
                if not self._plain_step(message):
                    self._step(message)
            case Expect():
                self._answers[message.request] = _Answer(self._tokenizer, message)
            case _:
                raise UnknownMessage(self, message)
        return None

    def stats(self) -> Mapping[str, float]:
        return {"streams": len(self._answers), "tokens": self._tokens, "stop_matches": self._stop_matches}

    def _plain_step(self, step: StepTokens) -> bool:
        """Settle a step that brings one token to each of some plain answers, and nothing else; False for another."""
        if step.ends or step.started or step.prompt_logprobs or len(self._frontends) > 1:
            return False
        if not step.requests or len(step.tokens) != len(step.requests) or int(step.counts.min()) != 1:
            return False
        streams = [stream for stream in map(self._plain.get, step.requests) if stream is not None]
        if len(streams) != len(step.requests):
            return False
        texts, matched = feed_one_each(streams, step.tokens.tolist())
        finishes = tuple(self._finish(self._answers[step.requests[at]], None) for at in matched)
        self._frontends[0].send(Texts(step.requests, tuple(texts), step.counts, step.tokens, finishes=finishes))
        return True

    def _step(self, step: StepTokens) -> None:
        answers, letters = self._answers, _Letters()
        for started in step.started:
            if answer := answers.get(started.request):
                answer.cached_tokens = started.cached_tokens
        for request, part in step.prompt_logprobs:
            if answer := answers.get(request):
                self._prompt_part(answer, part, letters[request])
        ends = {end.request: end for end in step.ends}
        tokens, at = step.tokens.tolist(), 0
        for request, count in zip(step.requests, step.counts.tolist(), strict=True):
            if answer := answers.get(request):
                self._feed(
                    answer, tokens[at : at + count], step.logprobs, at, ends.pop(request, None), letters[request]
                )
            at += count
        for end in ends.values():
            if answer := answers.get(end.request):
                self._feed(answer, [], None, 0, end, letters[end.request])
        for frontend, letter in letters.items():
            if letter.requests or letter.finishes or letter.prompt_logprobs:
                self._frontends[frontend].send(letter.sealed())

    def _begin(self, answer: _Answer) -> str:
        """The first tokens or the end have come: what goes before the answer's text."""
        answer.has_begun = True
        if answer.sampling.logprobs is None:
            self._plain[answer.request] = answer.stream
        return answer.stream.echo(self._tokenizer, answer.echo) if answer.echo else ""

    def _first_prompt_entry(self, answer: _Answer, letter: _Letter) -> None:
        """The entry of the prompt's first token, which the executor has no numbers for, before all others."""
        if answer.sampling.prompt_logprobs is not None and not answer.prompt_entries:
            answer.prompt_entries = 1
            entry = first_prompt_entry(self._tokenizer, answer.echo[0] if answer.echo else UNKNOWN)
            letter.prompt_logprobs.append((answer.request, (entry,)))

    def _prompt_part(self, answer: _Answer, part: PromptLogprobs, letter: _Letter) -> None:
        """More of the prompt's entries; a prompt that is computed again after a preemption tells nothing new."""
        self._first_prompt_entry(answer, letter)
        most = answer.sampling.prompt_logprobs
        skip = max(0, answer.prompt_entries - part.start)
        if most is not None and skip < len(part.tokens):
            answer.prompt_entries = part.start + len(part.tokens)
            letter.prompt_logprobs.append((answer.request, prompt_entries(self._tokenizer, part, skip, most)))

    def _feed(
        self, answer: _Answer, ids: list[int], logprobs: Logprobs | None, at: int, end: End | None, letter: _Letter
    ) -> None:
        """New tokens of one answer, which lie at `at` in the step's columns, and its end if it is over."""
        self._first_prompt_entry(answer, letter)
        stream, sampling = answer.stream, answer.sampling
        text = "" if answer.has_begun else self._begin(answer)
        hides_last = end is not None and end.stop_token is not None and not sampling.include_stop_str_in_output
        before = stream.tokens
        text += stream.feed(ids, hides_last=hides_last and bool(ids))
        del ids[stream.tokens - before :]  # what came behind a stop string
        is_over = stream.matched is not None or end is not None
        if is_over:
            text += stream.flush()
        entries = None
        if sampling.logprobs is not None and logprobs is not None and ids:
            entries = token_logprobs(self._tokenizer, ids, logprobs, at, sampling.logprobs)
        if text or ids:
            letter.add(answer.request, text, ids, entries)
        if is_over:
            letter.finishes.append(self._finish(answer, end))

    def _finish(self, answer: _Answer, end: End | None) -> Finish:
        """The one outcome. A stop string ends the answer before anything else can."""
        request, stream = answer.request, answer.stream
        del self._answers[request]
        self._plain.pop(request, None)
        counts = (answer.prompt_tokens, stream.tokens, answer.cached_tokens)
        if stream.matched is not None:
            self._stop_matches += 1
            if end is None:
                self._scheduler.send(Ended(request, stream.tokens))
            return Finish(request, "stop", *counts, stop_reason=stream.matched)
        assert end is not None
        is_named = end.stop_token is not None and end.stop_token in answer.sampling.stop_token_ids
        return Finish(
            request, end.reason, *counts, stop_reason=end.stop_token if is_named else None, failure=end.failure
        )


class _Answer:
    """A request that produces tokens. `prompt_entries`: prompt tokens whose log-probabilities were told."""

    __slots__ = (
        "cached_tokens",
        "echo",
        "has_begun",
        "prompt_entries",
        "prompt_tokens",
        "request",
        "sampling",
        "stream",
    )

    def __init__(self, tokenizer: Tokenizer, expect: Expect) -> None:
        self.request = expect.request
        self.sampling = expect.sampling
        self.stream = TextStream(tokenizer, expect.sampling)
        self.prompt_tokens = expect.prompt_tokens
        self.cached_tokens = 0
        self.echo: Sequence[int] = np.frombuffer(expect.echo, dtype="<i4").tolist()
        self.has_begun = False
        self.prompt_entries = 0


class _Letter:
    """What one front end is told after a step."""

    __slots__ = ("counts", "finishes", "logprobs", "prompt_logprobs", "requests", "texts", "token_ids")

    def __init__(self) -> None:
        self.requests: list[RequestId] = []
        self.texts: list[str] = []
        self.counts: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[tuple[TokenLogprob, ...] | None] = []
        self.prompt_logprobs: list[tuple[RequestId, tuple[TokenLogprob, ...]]] = []
        self.finishes: list[Finish] = []

    def add(self, request: RequestId, text: str, ids: Sequence[int], logprobs: tuple[TokenLogprob, ...] | None) -> None:
        self.requests.append(request)
        self.texts.append(text)
        self.counts.append(len(ids))
        self.token_ids += ids
        self.logprobs.append(logprobs)

    def sealed(self) -> Texts:
        return Texts(
            requests=tuple(self.requests),
            texts=tuple(self.texts),
            counts=np.array(self.counts, dtype=np.int32),
            token_ids=np.array(self.token_ids, dtype=np.int32),
            logprobs=tuple(self.logprobs) if any(entries is not None for entries in self.logprobs) else None,
            prompt_logprobs=tuple(self.prompt_logprobs),
            finishes=tuple(self.finishes),
        )


class _Letters(dict[int, _Letter]):
    """One letter a front end, begun when there is something to say; asked for by request."""

    def __getitem__(self, request: int) -> _Letter:
        frontend = frontend_of(RequestId(request))
        letter = self.get(frontend)
        if letter is None:
            letter = self[frontend] = _Letter()
        return letter
