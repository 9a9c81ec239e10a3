"""Traces made up from a seed: independent prompts, chats of several turns, agents with a long context.

`asyncpage simulate` asks for one by name.

INVARIANT: equal settings and seed give equal arrivals and lengths, and equal prompts as far as the answers are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from asyncpage.errors import UsageError
from asyncpage.messages import Int32
from asyncpage.simulation.trace import Arrival, Session, Trace, Turn
from asyncpage.text.artificial_vocabulary import WORDS_FROM

_MOST_TURNS = 1000
_DRAWN_IDS = 4096  # at once: a draw takes 6 us however small, and 3 ns an id


@dataclass(frozen=True, slots=True)
class Shape:
    """How the requests of a synthetic trace look. Lengths are means in tokens; `spread` s draws from (1 ± s) of them.

    `systems`: different system prompts, of `system_tokens` each, one a session. `turns`: mean of a session's turns
    (geometric). `input_tokens`: new in each turn. `pause_s`: mean time from an answer to the next turn (exponential).
    """

    input_tokens: int
    output_tokens: int
    spread: float = 0.0
    systems: int = 0
    system_tokens: int = 0
    turns: float = 1.0
    pause_s: float = 0.0

    def check(self) -> None:
        """Errors: `UsageError` naming what cannot be."""
        for name, least in (("input_tokens", 1), ("output_tokens", 1), ("systems", 0), ("system_tokens", 0)):
            if getattr(self, name) < least:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.spread < 1:
            raise UsageError(f"--spread must be at least 0 and below 1, got {self.spread}")
        if not 1 <= self.turns <= _MOST_TURNS:
            raise UsageError(f"--turns must be between 1 and {_MOST_TURNS}, got {self.turns}")
        if not 0 <= self.pause_s < math.inf:
            raise UsageError(f"--pause must be 0 seconds or more, got {self.pause_s}")


SHAPES: Mapping[str, Shape] = {
    "random": Shape(input_tokens=256, output_tokens=64),
    "chat": Shape(
        input_tokens=60, output_tokens=150, spread=0.5, systems=8, system_tokens=400, turns=5.0, pause_s=10.0
    ),
    "agents": Shape(
        input_tokens=800, output_tokens=80, spread=0.5, systems=4, system_tokens=3000, turns=12.0, pause_s=1.0
    ),
}
"""Shapes by name. Agents read tool results that are long, answer with short calls, and come back soon."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When sessions come: `rate` a second on average, all at once when infinite.

    `burstiness` is the shape of the gamma-distributed times between them: 1 is a Poisson process, less comes in
    bursts, more is more even.
    """

    rate: float = math.inf
    burstiness: float = 1.0

    def check(self) -> None:
        """Errors: `UsageError` naming what cannot be."""
        if not self.rate > 0:
            raise UsageError(f"--request-rate must be greater than 0, got {self.rate}; leave it out for all at once")
        if not 0 < self.burstiness < math.inf:
            raise UsageError(f"--burstiness must be greater than 0, got {self.burstiness}; 1 is a Poisson process")


def synthetic_trace(
    name: str, shape: Shape, arrivals: Arrivals, *, requests: int, seed: int, end_id: int, most_tokens: int
) -> Trace:
    """A trace of exactly `requests` requests. Prompts are drawn from the ids from `WORDS_FROM` up to before `end_id`.

    `most_tokens`: a session ends before its next prompt and answer would be longer. Errors: `UsageError` naming what
    cannot be.
    """
    shape.check()
    arrivals.check()
    if requests < 1:
        raise UsageError(f"--num-requests must be at least 1, got {requests}")
    longest = shape.system_tokens * (shape.systems > 0) + math.ceil(
        (1 + shape.spread) * (shape.input_tokens + shape.output_tokens)
    )
    if longest > most_tokens:
        raise UsageError(
            f"a first request of this trace may take {longest} tokens and the context is {most_tokens}; raise "
            "--max-model-len, or lower the lengths"
        )
    stream = _Stream(shape, arrivals, requests, seed, end_id, most_tokens)
    return Trace(name, stream, requests, arrivals.rate != math.inf)


@dataclass(frozen=True, slots=True)
class _Stream:
    """Can be read again, from the same seed."""

    shape: Shape
    arrivals: Arrivals
    requests: int
    seed: int
    end_id: int
    most_tokens: int

    def __iter__(self) -> Iterator[Arrival]:
        moments, contents, ids = (np.random.default_rng((self.seed, part)) for part in range(3))
        maker = _Maker(self.shape, self.most_tokens, contents, _Ids(self.end_id, ids))
        next_gap_s = _gaps(self.arrivals, moments)
        at_s, left = 0.0, self.requests
        while left:
            turns, session = maker.session(left)
            left -= turns
            yield Arrival(at_s, session)
            at_s += next_gap_s()


def _gaps(arrivals: Arrivals, moments: np.random.Generator) -> Callable[[], float]:
    if arrivals.rate == math.inf:
        return float
    scale = 1 / (arrivals.rate * arrivals.burstiness)
    return lambda: moments.gamma(arrivals.burstiness, scale)


class _Maker:
    """Draws sessions in the order of arrivals; all that is random of a session is drawn at once."""

    def __init__(self, shape: Shape, most_tokens: int, draw: np.random.Generator, ids: _Ids) -> None:
        self._shape = shape
        self._most_tokens = most_tokens
        self._draw = draw
        self._ids = ids
        self._systems = [ids.take(shape.system_tokens) for _ in range(shape.systems)]

    def session(self, most_turns: int) -> tuple[int, Session]:
        """The next session and how many turns it has, at most `most_turns`."""
        shape, draw = self._shape, self._draw
        turns = 1 if shape.turns == 1 else min(most_turns, _MOST_TURNS, int(draw.geometric(1 / shape.turns)))
        lengths = [(self._length(shape.input_tokens), self._length(shape.output_tokens)) for _ in range(turns)]
        used = shape.system_tokens * (shape.systems > 0)
        for place, length in enumerate(lengths):
            used += sum(length)
            if used > self._most_tokens:
                del lengths[place:]
                break
        inputs = [self._ids.take(length) for length, _ in lengths]
        pauses = [0.0, *(float(draw.exponential(shape.pause_s)) for _ in lengths[1:])]
        if self._systems:
            inputs[0] = np.concatenate((self._systems[int(draw.integers(len(self._systems)))], inputs[0]))
        return len(lengths), _turns(inputs, [length for _, length in lengths], pauses)

    def _length(self, mean: int) -> int:
        spread = self._shape.spread
        return mean if not spread else max(1, round(mean * self._draw.uniform(1 - spread, 1 + spread)))


class _Ids:
    """Token ids, evenly from `WORDS_FROM` up to before `end_id`."""

    def __init__(self, end_id: int, draw: np.random.Generator) -> None:
        self._end_id = end_id
        self._draw = draw
        self._drawn = self._more(0)

    def take(self, count: int) -> Int32:
        """The next `count` of them."""
        if count > len(self._drawn):
            self._drawn = self._more(count)
        taken, self._drawn = self._drawn[:count], self._drawn[count:]
        return taken

    def _more(self, least: int) -> Int32:
        return self._draw.integers(WORDS_FROM, self._end_id, max(least, _DRAWN_IDS), dtype=np.int32)


def _turns(inputs: list[Int32], outputs: list[int], pauses: list[float]) -> Session:
    """Each prompt is the one before with its answer and what is new."""
    prompt = inputs[0]
    last = len(inputs) - 1
    for place, (output, pause_s) in enumerate(zip(outputs, pauses, strict=True)):
        answer = yield Turn(prompt, output, place == last, pause_s)
        if place < last:
            prompt = np.concatenate((prompt, answer, inputs[place + 1]))
