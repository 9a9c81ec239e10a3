"""Of several choices drawn for a prompt, the few that the model itself finds most likely (`best_of`).

The collector asks when a call drew more choices than its answer shows.

INVARIANT: every prompt keeps the same number of choices, best first; of equals the one that was drawn first is better.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.server.generate.shape import Collected


def best_choices(choices: Sequence[Collected], drawn: int, shown: int) -> list[Collected]:
    """The `shown` best of each prompt's `drawn` choices, prompt by prompt: by log-probability a token.

    Needs the log-probability of every generated token.
    """
    found: list[Collected] = []
    for start in range(0, len(choices), drawn):
        found += sorted(choices[start : start + drawn], key=_likelihood, reverse=True)[:shown]
    return found


def _likelihood(choice: Collected) -> float:
    logprobs = [float(entry[1]) for entry in choice.entries]
    return sum(logprobs) / max(1, len(logprobs))
