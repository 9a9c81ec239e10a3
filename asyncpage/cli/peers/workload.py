"""The workloads by which engines are compared, and what each of them measures.

`comparison` runs them against one server after another; the requests go out through `load`.

INVARIANT: every run, attempt and workload has prompts of its own, of exactly the tokens that it names, so that no
prefix cache helps but where sharing is what is measured; a run whose answers were not those that it asked for fails.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from asyncpage.cli.latency import Sample, percentile, summary
from asyncpage.cli.load import WORDS, Plan, send_all
from asyncpage.errors import AsyncpageError
from asyncpage.text.tokenizer import Tokenizer

_MOST_CACHED = 0.05  # of a prompt that nobody sent before: its first words may be some other one's
_DRAWS = 64  # of a text until it has its tokens; single words are one token each in most vocabularies


class WorkloadFailed(AsyncpageError):
    """A server did not answer as it was asked to, so its times say nothing."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests` of `prompt_tokens`, of which the first `shared_tokens` are those of all, with `new_tokens` each.

    `in_flight`: how many at once. `every_s`: between two arrivals, 0 for all at once, as far as `in_flight` lets them.
    """

    name: str
    requests: int
    in_flight: int
    prompt_tokens: int
    new_tokens: int
    shared_tokens: int = 0
    every_s: float = 0.0


SINGLE = Workload("single", 3, 1, 32, 128)
PREFILL = Workload("prefill", 3, 1, 1024, 1)
C8 = Workload("c8", 16, 8, 128, 64)
C32 = Workload("c32", 32, 32, 128, 64)
SHARED = Workload("shared", 32, 8, 800, 16, shared_tokens=768)
STAGGERED = Workload("staggered", 16, 8, 128, 64, every_s=0.25)

CHOICES: Mapping[str, tuple[Workload, ...]] = {
    "single": (SINGLE,),
    "prefill": (PREFILL,),
    "c8": (C8,),
    "c32": (C32,),
    "shared": (SHARED,),
    "itl": (C8, STAGGERED),
    "start": (),
}
"""What each word on the command line runs. A start is timed and memory is read in any case."""


class ExactText:
    """Texts of an exact number of tokens, as the model's own vocabulary counts them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def draw(self, source: random.Random, tokens: int, before: str = "") -> str:
        """`before` and common words behind it, so many tokens in all.

        Errors: `WorkloadFailed` where common words do not make that many.
        """
        for _ in range(_DRAWS):
            words = source.choices(WORDS, k=tokens - self.count(before))
            while words and (count := self.count(before + " ".join(words))) > tokens:
                del words[tokens - count :]
            words += source.choices(WORDS, k=tokens - self.count(before + " ".join(words)))
            if self.count(text := before + " ".join(words)) == tokens:
                return text
        raise WorkloadFailed(f"no text of {tokens} tokens was found in {_DRAWS} draws from common words")

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special=False))


def prompts(workload: Workload, text: ExactText, seed: str) -> tuple[tuple[str, float], ...]:
    """Each with the seconds after the start at which it goes out. The same seed draws the same."""
    source = random.Random(f"{workload.name} {seed}")
    shared = text.draw(source, workload.shared_tokens) + " " if workload.shared_tokens else ""
    drawn = (text.draw(source, workload.prompt_tokens, shared) for _ in range(workload.requests))
    return tuple((one, number * workload.every_s) for number, one in enumerate(drawn))


async def run(
    workload: Workload, url: str, model: str, sent: Sequence[tuple[str, float]], now: Callable[[], float]
) -> Mapping[str, float]:
    """Send the prompts and return what was measured, by the name of the table's row.

    Errors: `WorkloadFailed` when an answer was refused, cut off, of other lengths, or found in a cache.
    """
    plan = Plan(
        base_url=url,
        endpoint="/v1/completions",
        model=model,
        api_key="",
        num_prompts=len(sent),
        request_rate=float("inf"),
        max_concurrency=workload.in_flight,
        random_input_len=workload.prompt_tokens,
        random_output_len=workload.new_tokens,
        temperature=0.0,
        seed=0,
    )
    samples, duration_s = await send_all(plan, sent, now, lambda done, total: None)
    check(workload, samples)
    return figures(workload, samples, duration_s)


def check(workload: Workload, samples: Sequence[Sample]) -> None:
    """Errors: `WorkloadFailed`, see `run`."""
    for sample in samples:
        if sample.error:
            raise WorkloadFailed(f"{workload.name}: {sample.error}")
        if sample.output_tokens != workload.new_tokens:
            raise WorkloadFailed(
                f"{workload.name}: an answer had {sample.output_tokens} tokens, {workload.new_tokens} were asked for"
            )
        # A server may put a token of its own before a text.
        if not workload.prompt_tokens <= sample.prompt_tokens <= workload.prompt_tokens + 1:
            raise WorkloadFailed(
                f"{workload.name}: the server counted {sample.prompt_tokens} tokens in a prompt of "
                f"{workload.prompt_tokens}"
            )
        if not workload.shared_tokens and sample.cached_tokens > max(2, _MOST_CACHED * workload.prompt_tokens):
            raise WorkloadFailed(
                f"{workload.name}: {sample.cached_tokens} tokens of a new prompt came out of a cache; they should not"
            )


def figures(workload: Workload, samples: Sequence[Sample], duration_s: float) -> Mapping[str, float]:
    """What a run of it says, by the name of the table's row."""
    if workload is SINGLE:
        rates = [
            (one.output_tokens - 1) / (one.arrivals[-1] - one.arrivals[0]) for one in samples if len(one.arrivals) > 1
        ]
        return {"single": statistics.median(rates)}
    if workload is PREFILL:
        # The one token may be half a character, which has no text to send.
        firsts = [(one.arrivals[0] if one.arrivals else one.ended) - one.sent for one in samples]
        return {"prefill": workload.prompt_tokens / statistics.median(firsts)}
    if workload is SHARED:
        return {"shared": duration_s}
    gaps = [later - earlier for one in samples for earlier, later in zip(one.arrivals, one.arrivals[1:], strict=False)]
    itl_ms = 1e3 * percentile(gaps, 99)
    if workload is STAGGERED:
        return {"itl_staggered": itl_ms}
    rate = float(summary(samples, duration_s)["output_throughput"])
    return {workload.name: rate, "itl_together": itl_ms} if workload is C8 else {workload.name: rate}
