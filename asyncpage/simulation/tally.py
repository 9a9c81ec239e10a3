"""What the clients of a simulation counted, and its summary under the names that `bench serve` uses.

The driver fills it; `simulate` prints it.

INVARIANT: only requests that completed count in latencies and token counts; its size does not depend on their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from asyncpage.messages import Finish
from asyncpage.simulation.distribution import Distribution

PERCENTILES = {"median": 50, "p90": 90, "p99": 99}
LATENCIES = ("ttft", "tpot", "e2el")

Summary = dict[str, float | int | str]


class Tally:
    """Counts and latencies of finished requests. Times are seconds on the simulation's clock."""

    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0
        self.refused = 0
        self.hits = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.first_sent_s = math.inf
        self.last_ended_s = -math.inf
        self.first_failure = ""
        self.ttft, self.tpot, self.e2el = Distribution(), Distribution(), Distribution()

    def completed_one(self, finish: Finish, sent_s: float, first_s: float, ended_s: float) -> None:
        """A request got all its tokens. `first_s`: when the first of them came."""
        self.completed += 1
        self.prompt_tokens += finish.prompt_tokens
        self.output_tokens += finish.completion_tokens
        self.cached_tokens += finish.cached_tokens
        self.hits += finish.cached_tokens > 0
        self.first_sent_s = min(self.first_sent_s, sent_s)
        self.last_ended_s = max(self.last_ended_s, ended_s)
        self.ttft.add(first_s - sent_s)
        if finish.completion_tokens > 1:
            self.tpot.add((ended_s - first_s) / (finish.completion_tokens - 1))
        self.e2el.add(ended_s - sent_s)

    def failed_one(self, reason: str, *, is_refused: bool = False) -> None:
        """A request was not taken (`is_refused`), or taken and not finished."""
        self.refused += is_refused
        self.failed += not is_refused
        self.first_failure = self.first_failure or reason

    @property
    def done(self) -> int:
        """Requests that have had their outcome."""
        return self.completed + self.failed + self.refused

    def summary(self, scheduler: Mapping[str, float], executor: Mapping[str, float]) -> Summary:
        """Everything that is printed. The arguments are those actors' stats at the end."""
        duration_s = max(0.0, self.last_ended_s - self.first_sent_s) if self.completed else 0.0
        per_s = 1 / duration_s if duration_s else 0.0
        steps = int(executor.get("steps", 0))
        result: Summary = {
            "completed": self.completed,
            "failed": self.failed,
            "refused": self.refused,
            "duration": duration_s,
            "total_input_tokens": self.prompt_tokens,
            "total_cached_tokens": self.cached_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.completed * per_s,
            "output_throughput": self.output_tokens * per_s,
            "total_token_throughput": (self.prompt_tokens + self.output_tokens) * per_s,
            "token_hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            "request_hit_rate": self.hits / self.completed if self.completed else 0.0,
            "preemptions": int(scheduler.get("preemptions", 0)),
            "steps": steps,
            "mean_rows": executor.get("rows", 0) / steps if steps else 0.0,
            "device_busy": min(1.0, executor.get("busy_us", 0) / 1e6 * per_s),
        }
        for name in LATENCIES:
            found: Distribution = getattr(self, name)
            if found.count:
                result[f"mean_{name}_ms"] = 1e3 * found.mean_s
                for word, percent in PERCENTILES.items():
                    result[f"{word}_{name}_ms"] = 1e3 * found.percentile_s(percent)
        return result
