"""Clients in the engine's own process: sinks that keep what they hear and, where asked, come back with a new request.

The loads of `bench control-plane` open them; they talk to `AsyncEngine.submit` as the server does.

INVARIANT: a client whose answer is not what it asked for is counted as broken.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import Failure
from asyncpage.messages import Finish, LogprobEntry, RequestId, RequestOptions, TokenPrompt
from asyncpage.text.artificial_vocabulary import WORDS_FROM

_OPTIONS = RequestOptions()

GROUPS = 8
SHARED_TOKENS = 192
OWN_TOKENS = 24
ANSWER_TOKENS = 64
_MANY = 1 << 16

STOP = ("\n\nUser:", " zz zz zz")
"""Never said, but an answer has every character of theirs, so now and then a beginning is held back."""


class Answer:
    """The sink of one request: keeps its texts, and counts tokens and log-probabilities as they pass by."""

    __slots__ = ("asked", "clients", "entries", "texts", "tokens")

    def __init__(self, clients: Clients, asked: int) -> None:
        self.clients = clients
        self.asked = asked
        self.texts: list[str] = []
        self.tokens = self.entries = 0

    def accepted(self, request: RequestId, prompt_tokens: int) -> None:
        """It will be answered."""

    def refused(self, request: RequestId, failure: Failure) -> None:
        self.clients.over(self, failure)

    def text(
        self, request: RequestId, text: str, token_ids: Sequence[int], logprobs: Sequence[LogprobEntry] | None
    ) -> None:
        self.texts.append(text)
        self.tokens += len(token_ids)
        if logprobs is not None:
            self.entries += len(logprobs)

    def prompt_logprobs(self, request: RequestId, entries: Sequence[LogprobEntry]) -> None:
        """Nobody asks for them."""

    def finished(self, finish: Finish) -> None:
        self.clients.over(self, finish.failure)


class Clients:
    """`finished`, `broken`: requests so far. `first_failure`: the text of the first that failed, "" for none."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.finished = 0
        self.broken = 0
        self.first_failure = ""
        self._engine = engine

    def ask(self, prompt: bytes, sampling: SamplingParams) -> None:
        """Send one request. `prompt`: token ids, int32."""
        self._engine.submit(TokenPrompt(prompt), sampling, _OPTIONS, Answer(self, sampling.max_tokens or 0))

    def over(self, answer: Answer, failure: Failure | None) -> None:
        """One of them has its outcome."""
        self.finished += 1
        if failure is not None or answer.tokens != answer.asked:
            self.broken += 1
            what = f"an answer has {answer.tokens} tokens, asked for were {answer.asked}"
            self.first_failure = self.first_failure or (what if failure is None else failure.message)


class Lasting(Clients):
    """Clients whose answers go on for longer than anybody looks."""

    def start(self, running: int, tokens: int) -> None:
        """Ask `running` times for `tokens` tokens, with prompts of 16 lengths: rows fill their blocks in turn."""
        for number in range(running):
            prompt = words(16 + number % 16, seed=number)
            self.ask(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True))


class Coming(Clients):
    """Clients that come back when they are answered: prompts with a shared beginning, stop strings, a logprob.

    A prompt is `SHARED_TOKENS` of one of `GROUPS` beginnings and `OWN_TOKENS` of its own; an answer `ANSWER_TOKENS`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self._is_over = False
        self._groups = [words(SHARED_TOKENS, seed=group) for group in range(GROUPS)]
        self._own = words(_MANY, seed=GROUPS)  # a prompt's own words are a piece of it, from another place each
        self._asked = 0
        self._sampling = self._of_length(ANSWER_TOKENS)

    def start(self, open_requests: int) -> None:
        """The first answers are of every length up to the full one, so that from then on as many end in each step."""
        for number in range(open_requests):
            self._come(self._of_length(1 + number % ANSWER_TOKENS))

    def stop(self) -> None:
        """Nobody comes back any more."""
        self._is_over = True

    def over(self, answer: Answer, failure: Failure | None) -> None:
        super().over(answer, failure)
        if failure is None and not self._is_over:
            self._come(self._sampling)

    def _come(self, sampling: SamplingParams) -> None:
        self._asked += 1
        place = 4 * (self._asked * 997 % (_MANY - OWN_TOKENS))
        self.ask(self._groups[self._asked % GROUPS] + self._own[place : place + 4 * OWN_TOKENS], sampling)

    def _of_length(self, tokens: int) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, ignore_eos=True, stop=STOP, logprobs=1)


def words(count: int, *, seed: int) -> bytes:
    """Ids of words of the artificial vocabulary, int32."""
    dice = random.Random(seed)
    return array("i", [dice.randrange(WORDS_FROM, WORDS_FROM + 1000) for _ in range(count)]).tobytes()
