"""What a load run measured, and its summary under the names that users of serving benchmarks know.

`load` fills a `Sample` a request; `bench` prints the `summary`.

INVARIANT: only requests that completed count; a failed one is counted as failed and nowhere else.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """One request. Times are seconds on one monotone clock.

    `arrivals`: when each chunk with text came; a chunk may hold several tokens. `output_tokens` is the server's own
    count where it sent one, else the number of chunks. `error` is "" when the request completed.
    """

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


def summary(samples: Sequence[Sample], duration_s: float) -> dict[str, float | int | str]:
    """Throughputs, and mean, median and 99th percentile of each latency in milliseconds.

    ttft: sent to first chunk. tpot: time per output token after the first, (end - first) / (tokens - 1). itl: the
    gaps between chunks, over all requests. e2el: sent to last chunk.
    """
    done = [sample for sample in samples if not sample.error]
    prompt_tokens = sum(sample.prompt_tokens for sample in done)
    output_tokens = sum(sample.output_tokens for sample in done)
    result: dict[str, float | int | str] = {
        "completed": len(done),
        "failed": len(samples) - len(done),
        "duration": duration_s,
        "total_input_tokens": prompt_tokens,
        "total_cached_tokens": sum(sample.cached_tokens for sample in done),
        "total_output_tokens": output_tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (prompt_tokens + output_tokens) / duration_s,
    }
    streamed = [sample for sample in done if sample.arrivals]
    latencies = {
        "ttft": [sample.arrivals[0] - sample.sent for sample in streamed],
        "tpot": [
            (sample.arrivals[-1] - sample.arrivals[0]) / (sample.output_tokens - 1)
            for sample in streamed
            if sample.output_tokens > 1
        ],
        "itl": [
            later - earlier
            for sample in streamed
            for earlier, later in zip(sample.arrivals, sample.arrivals[1:], strict=False)
        ],
        "e2el": [sample.ended - sample.sent for sample in done],
    }
    for name, values in latencies.items():
        if values:
            result[f"mean_{name}_ms"] = 1e3 * statistics.fmean(values)
            result[f"median_{name}_ms"] = 1e3 * percentile(values, 50)
            result[f"p99_{name}_ms"] = 1e3 * percentile(values, 99)
    return result


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of a non-empty sample lies, linear between its neighbours."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
