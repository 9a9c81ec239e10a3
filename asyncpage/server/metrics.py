"""What the server counts, and how it all looks to Prometheus.

Routes and exchanges count here; `GET /metrics` renders it together with the actors' own stats of that moment.

INVARIANT: no label takes a value that a client chose, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asyncpage.messages import Finish
from asyncpage.server.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Stats = Mapping[str, Mapping[str, float]]
"""Numbers by actor and name, as the engine's ping returns them."""

_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
_CALL_S = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

# Series that dashboards know, from the actors' stats that they are made of (sums of all those named).
_GAUGES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("num_requests_running", "Requests that have a row in the batch", ("running",)),
    ("num_requests_waiting", "Requests that wait for a row", ("waiting",)),
    ("kv_cache_blocks_total", "Blocks in the KV pool", ("blocks_total",)),
    ("kv_cache_blocks_used", "Blocks that running requests hold", ("blocks_referenced",)),
    ("kv_cache_blocks_free", "Blocks that can be handed out, cached ones included", ("blocks_blank", "blocks_cached")),
    ("kv_cache_blocks_cached", "Free blocks that still hold a reusable prefix", ("blocks_cached",)),
)
_COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", ("prompt_tokens",)),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache", ("cached_tokens",)),
    ("num_preemptions", "Requests put back to waiting for want of blocks", ("preemptions",)),
    ("recomputed_tokens", "Tokens computed again after a preemption", ("recomputed_tokens",)),
    ("prefix_shared_in_flight", "Requests that waited for blocks another was computing", ("parked",)),
    ("spec_decode_num_draft_tokens", "Tokens guessed ahead by speculation", ("draft_tokens",)),
    ("spec_decode_num_accepted_tokens", "Of these, those that were right", ("accepted_draft_tokens",)),
    ("executor_restarts", "Executors lost and replaced", ("executor_losses",)),
)


class Metrics:
    """Every counter of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._actors = _ActorStats()
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first token", _FIRST_S)
        self.token_gap = self._histogram("inter_token_latency_seconds", "Between tokens of one choice", _GAP_S)
        self.call_time = self._histogram("e2e_request_latency_seconds", "From arrival to the last byte", _CALL_S)
        self.prompt_size = self._histogram("request_prompt_tokens", "Prompt tokens of a finished call", _TOKENS)
        self.answer_size = self._histogram("request_generation_tokens", "Tokens generated for a choice", _TOKENS)
        self._registry.register(self._actors)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished calls")
        self._answer_tokens = self._counter("generation_tokens", "Tokens generated for finished calls")
        self._successes = self._counter("request_success", "Choices that finished", "finished_reason")
        self._failures = self._counter("request_failure", "Calls that failed, by error code", "reason")
        self._responses = self._counter("http_responses", "Answers sent", "route", "status")
        self._ignored = self._counter("ignored_fields", "Request fields that nothing here knows")
        self._cut = self._counter("slow_readers_cut", "Streams whose client did not read")
        for reason in ("stop", "length"):
            self._successes.labels(reason)

    def call_succeeded(self, prompt_tokens: int, finishes: tuple[Finish, ...]) -> None:
        """Count a call whose every choice finished; the prompts count once, whatever `n` is."""
        self._prompt_tokens.inc(prompt_tokens)
        self.prompt_size.observe(prompt_tokens)
        for finish in finishes:
            self._answer_tokens.inc(finish.completion_tokens)
            self.answer_size.observe(finish.completion_tokens)
            self._successes.labels(finish.reason).inc()

    def call_failed(self, reason: str) -> None:
        """`reason`: an error code of ours, or what became of the client."""
        self._failures.labels(reason).inc()

    def answered(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()

    def fields_ignored(self, count: int) -> None:
        self._ignored.inc(count)

    def reader_cut(self) -> None:
        self._cut.inc()

    def render(self, stats: Stats, *, is_complete: bool) -> bytes:
        """The exposition text. `is_complete`: every actor answered with its stats."""
        self._actors.stats = stats
        self._actors.is_complete = is_complete
        return generate_latest(self._registry)

    def _histogram(self, name: str, help: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"asyncpage_{name}", help, bounds)
        self._registry.register(histogram)
        return histogram

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"asyncpage_{name}", help, labels, registry=self._registry)


class _ActorStats(Collector):
    """The actors' stats of one scrape: the well-known series by name, and all of them by actor."""

    def __init__(self) -> None:
        self.stats: Stats = {}
        self.is_complete = True

    def collect(self) -> Iterator[Metric]:
        for name, help, parts in _GAUGES:
            yield GaugeMetricFamily(f"asyncpage_{name}", help, value=self._sum(parts))
        for name, help, parts in _COUNTERS:
            yield CounterMetricFamily(f"asyncpage_{name}", help, value=self._sum(parts))
        total = self._sum(("blocks_total",))
        share = self._sum(("blocks_referenced",)) / total if total else 0.0
        yield GaugeMetricFamily("asyncpage_kv_cache_usage_perc", "Share of the KV pool in use, 0 to 1", value=share)
        yield GaugeMetricFamily(
            "asyncpage_actors_answer", "1 when every actor answered this scrape in time", value=float(self.is_complete)
        )
        every = GaugeMetricFamily("asyncpage_actor_stat", "Every number the actors tell", labels=("actor", "stat"))
        for actor, numbers in self.stats.items():
            for stat, value in numbers.items():
                every.add_metric((actor, stat), value)
        yield every

    def _sum(self, parts: tuple[str, ...]) -> float:
        return float(sum(numbers[part] for part in parts for numbers in self.stats.values() if part in numbers))
