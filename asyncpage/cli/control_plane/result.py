"""What one load of `bench control-plane` found, the bars it is held to, and both as a table.

INVARIANT: a load is below its bar exactly when it is in `below`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncpage.simulation.house_meter import ACTORS, NAMING

RATE_BARS: Mapping[tuple[str, int], float] = {
    ("steady", 256): 1_000_000,
    ("churn", 256): 300_000,
    ("sse", 256): 100_000,
}
"""Tokens a second, by load and running requests."""

SETTLE_BARS_US: Mapping[tuple[str, int], float] = {("steady", 256): 30, ("steady", 1024): 120}
"""Scheduler and KV manager up to sending the step."""


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over windows.

    `tokens_per_s`: of one core, by the time that this process computed; `wall_tokens_per_s`: by the clock on the wall.
    `actors_us`: a step's time by actor. `settle_us`: scheduler and KV manager up to sending the step.
    """

    load: str
    running: int
    tokens_per_s: float
    wall_tokens_per_s: float
    step_us: float
    step_tokens: float
    actors_us: Mapping[str, float]
    settle_us: float

    @property
    def name(self) -> str:
        return f"{self.load} {self.running}"

    @property
    def rate_bar(self) -> float | None:
        return RATE_BARS.get((self.load, self.running))

    @property
    def settle_bar_us(self) -> float | None:
        return SETTLE_BARS_US.get((self.load, self.running))

    def to_json(self) -> dict[str, object]:
        return {
            "load": self.load,
            "running": self.running,
            "tokens_per_s": round(self.tokens_per_s),
            "tokens_per_s_bar": self.rate_bar,
            "wall_tokens_per_s": round(self.wall_tokens_per_s),
            "step_us": round(self.step_us, 2),
            "tokens_a_step": round(self.step_tokens, 1),
            "actors_us": {name: round(us, 2) for name, us in self.actors_us.items()},
            "settle_schedule_commit_us": round(self.settle_us, 2),
            "settle_schedule_commit_bar_us": self.settle_bar_us,
        }


def below(results: Sequence[Result]) -> list[str]:
    """What does not reach its bar, in words."""
    found = []
    for result in results:
        if result.rate_bar is not None and result.tokens_per_s < result.rate_bar:
            found.append(f"{result.name}: {result.tokens_per_s:,.0f} tokens/s, the bar is {result.rate_bar:,.0f}")
        if result.settle_bar_us is not None and result.settle_us > result.settle_bar_us:
            found.append(
                f"{result.name}: settle, schedule and commit take {result.settle_us:.1f} us a step, the bar is "
                f"{result.settle_bar_us:g}"
            )
    found += _not_linear([result for result in results if result.load == "steady"])
    return found


def _not_linear(steady: Sequence[Result]) -> list[str]:
    """A step may grow with its rows, and not faster."""
    by_size = sorted(steady, key=lambda result: result.running)
    if len(by_size) < 2:
        return []
    small, large = by_size[0], by_size[-1]
    most_us = small.step_us * large.running / small.running
    if large.step_us <= most_us:
        return []
    text = f"{large.name}: a step takes {large.step_us:.0f} us, linear growth from {small.running} allows {most_us:.0f}"
    return [text]


def table(results: Sequence[Result]) -> str:
    """A column a load."""
    rest = [result.step_us - sum(result.actors_us.values()) for result in results]
    rows: list[tuple[str, list[str]]] = [
        ("tokens/s of one core", [f"{result.tokens_per_s:,.0f}" for result in results]),
        ("  bar", [_bar(result.rate_bar) for result in results]),
        ("tokens/s by the clock", [f"{result.wall_tokens_per_s:,.0f}" for result in results]),
        ("us a step", [f"{result.step_us:.1f}" for result in results]),
        ("us a token", [f"{result.step_us / result.step_tokens:.2f}" for result in results]),
        ("us a step, by actor", [""] * len(results)),
        *((f"  {name}", [f"{result.actors_us[name]:.1f}" for result in results]) for name in (*ACTORS, NAMING)),
        ("  loop, mailboxes, sockets", [f"{us:.1f}" for us in rest]),
        ("settle, schedule, commit", [f"{result.settle_us:.1f}" for result in results]),
        ("  bar", [_bar(result.settle_bar_us) for result in results]),
    ]
    width = max(len(result.name) for result in results) + 2
    lines = [" " * 28 + "".join(f"{result.name:>{width}}" for result in results)]
    lines += [f"{title:<28}" + "".join(f"{value:>{width}}" for value in values) for title, values in rows]
    return "\n".join(line.rstrip() for line in lines)


def _bar(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
