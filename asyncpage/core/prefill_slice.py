"""How many prompt tokens may join rows that decode, so that these do not wait too long for their next token.

The planner asks before a step that has both, and tells what such steps took. A step takes a part that does not depend
on how many prompt tokens are in it, made of the rows that decode with all that they attend to, and a part that does.
Neither is known, but if a step with p prompt tokens took t, then a step with p * aim / t of them is nearer to `aim`,
and on the same side of it: shorter if the step was shorter, longer if it was longer, since the fixed part stays. So the
slice grows to that when a step was short enough, shrinks to it when it was not, and comes from either side to the one
size whose steps take as long as they may.

What it costs is the fixed part once more for each slice. Simulated when 7/8 of the target were aimed at, of the
throughput of 32 prompts of 128 tokens at once with 64 tokens each, and 60 ms: 5 to 7 % where a step takes 4 ms and 1 ms
a token, 11 % at 30 and 8 ms, and 25 % at 30 ms, 2 a token and 3 a row, where a few rows alone take longer than that, so
that nothing is gained by slices of one block: for such models the target is to be raised.

What lost: a fit of both parts, which takes a window of steps to notice that a row with a long context came in, and
`step_costs`, which tells steps apart by tokens alone: eight rows at 4,000 tokens each take longer than 32 at 100.

INVARIANT: a slice is at least `least` and at most `most`, so that a prompt always goes on; it depends on what the
executor answered and on nothing else, so a replay makes it again.
"""

from __future__ import annotations

_AIM = 3 / 4  # of the target: steps differ, the longest are what is waited for, and 7/8 gave 69 ms at the 99th of 100
_MOST_CHANGE = 2.0  # from one step to the next, so that a neighbour on the machine is soon forgotten


class PrefillSlice:
    """`target_us`: that a step with rows that decode may take. `least`, `most`: tokens of a slice."""

    def __init__(self, target_us: int, least: int, most: int) -> None:
        self._aim_us = _AIM * target_us
        self._least, self._most = min(least, most), most
        self._slice = float(most)
        self._has_mixed = False

    @property
    def tokens(self) -> int:
        """Prompt tokens that may join rows that decode, in all."""
        return int(self._slice)

    def learn(self, decodes: int, prefill: int, step_us: int) -> None:
        """A step of so many rows that decoded and so many prompt tokens took that long."""
        if not prefill or step_us <= 0:
            return
        if decodes:
            self._slice = next_slice(
                self._slice, prefill, step_us, aim_us=self._aim_us, least=self._least, most=self._most
            )
            self._has_mixed = True
        elif not self._has_mixed:  # it is the first word on how fast this machine is
            self._slice = min(max(prefill * self._aim_us / step_us, self._least), self._most)


def next_slice(now: float, prefill: int, step_us: int, *, aim_us: float, least: int, most: int) -> float:
    """The slice that follows `now` when a step with `prefill` prompt tokens took `step_us`."""
    told = prefill * aim_us / step_us
    greater, smaller = max(now, min(told, _MOST_CHANGE * now)), min(now, max(told, now / _MOST_CHANGE))
    return float(min(max(greater if step_us <= aim_us else smaller, least), most))
