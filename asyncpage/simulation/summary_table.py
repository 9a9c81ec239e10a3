"""A simulation's summary as lines for people.

`asyncpage simulate` prints it.
"""

from __future__ import annotations

from asyncpage.simulation.tally import LATENCIES, PERCENTILES, Summary

_COUNTS = {
    "completed": "completed requests",
    "failed": "failed requests",
    "refused": "refused requests",
    "duration": "simulated duration (s)",
    "total_input_tokens": "total input tokens",
    "total_cached_tokens": "of them cached",
    "total_output_tokens": "total generated tokens",
    "request_throughput": "request throughput (req/s)",
    "output_throughput": "output token throughput (tok/s)",
    "total_token_throughput": "total token throughput (tok/s)",
    "token_hit_rate": "prompt tokens found in the cache (%)",
    "request_hit_rate": "requests with a hit (%)",
    "preemptions": "preemptions",
    "steps": "steps",
    "mean_rows": "requests in a step, mean",
    "device_busy": "device busy (%)",
}

_SHARES = ("token_hit_rate", "request_hit_rate", "device_busy")

_TITLES = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token, first excluded (TPOT)",
    "e2el": "end-to-end latency (E2EL)",
}


def summary_table(summary: Summary) -> str:
    """Counts first, then each latency's mean and percentiles."""
    lines = [f"{text:<48} {_number(name, summary[name]):>12}" for name, text in _COUNTS.items()]
    for latency in LATENCIES:
        if f"mean_{latency}_ms" in summary:
            lines.append(_TITLES[latency])
            for word in ("mean", *PERCENTILES):
                lines.append(f"  {word + ' (ms)':<46} {_number('', summary[f'{word}_{latency}_ms']):>12}")
    return "\n".join(lines)


def _number(name: str, value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{100 * value if name in _SHARES else value:.2f}"
    return str(value)
