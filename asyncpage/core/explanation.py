"""Why a request found what it found in the cache, and why no more.

The KV manager tells of every request that it lets in, between the match and the first block that is taken for it, and
asks when somebody wants to know. What could change later is looked up at once: where the cached tokens part from the
prompt, and what became of each block that was missed. It is kept as runs of blocks, the mapping is made when asked for.

INVARIANT: at most `most` explanations are kept; every block of a request is matched or has exactly one reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from asyncpage.core.block_names import extend_chain, root_name, root_parts
from asyncpage.core.obituaries import Obituaries, Obituary
from asyncpage.core.prefix_index import Match, PrefixIndex
from asyncpage.messages import Prefix, RequestId
from asyncpage.records import record

Reason = Literal["never cached", "evicted", "other salt or adapter", "incomplete", "partial"]
"""Why a block was computed.

"incomplete": it is cached, but a block before it, or its part of a sliding window, is not. "partial": it is the last
one, and is not full or has the one token that is always computed. Of a partial block, and of the first one missed,
tokens may still have been reused: the matched ones say how many.
"""

_TOKEN = 4  # bytes, int32 little-endian


@record(frozen=True, slots=True)
class Missed:
    """A run of blocks with one reason. `obituary`: of an evicted one."""

    first: int
    count: int
    reason: Reason
    obituary: Obituary | None = None


@record(frozen=True, slots=True)
class Explanation:
    """What one admission found. `known`: its tokens, with what it had generated before it was preempted.

    `matched`: tokens that it need not compute, with those that were fetched from outside the device. `diverges`:
    position, the prompt's token and the cache's where they first differ; None when one of the two ends before.
    """

    step: int
    request: RequestId
    label: str
    root: bytes
    known: int
    matched: int
    matched_blocks: int
    fetched_blocks: int
    diverges: tuple[int, int, int] | None
    missed: tuple[Missed, ...]

    def as_mapping(self, labels: Mapping[RequestId, str]) -> Mapping[str, Any]:
        """Plain values, fit for JSON. `labels`: of the requests that blocks were evicted for, where they are known."""
        parts = root_parts(self.root)
        return {
            "request": self.request,
            "label": self.label,
            "step": self.step,
            "block_size": int(parts["block"]),
            "adapter": parts["adapter"],
            "is_salted": parts["salt"] != "",  # the salt itself is its tenant's
            "known_tokens": self.known,
            "matched_tokens": self.matched,
            "matched_blocks": self.matched_blocks,
            "fetched_blocks": self.fetched_blocks,
            "diverges": self.diverges and dict(zip(("position", "expected", "found"), self.diverges, strict=True)),
            "missed": [_plain(run, labels) for run in self.missed],
        }


class Explanations:
    """The last `most` admissions."""

    def __init__(self, obituaries: Obituaries, block_size: int, most: int = 1000) -> None:
        self._obituaries = obituaries
        self._block_size = block_size
        self._kept: deque[Explanation] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._kept)

    def admitted(
        self,
        step: int,
        request: RequestId,
        label: str,
        prefix: Prefix,
        match: Match,
        index: PrefixIndex,
        fetched: int = 0,
    ) -> None:
        """Remember why `match`, with one token left to compute, is all that a request shares.

        `fetched`: blocks behind it that come from outside the device. To be told before blocks are taken for the
        request, and only of those that read the cache.
        """
        size = self._block_size
        known = len(prefix.tokens) // _TOKEN
        blocks = len(match.blocks[0])
        first = blocks + fetched
        matched = first * size + match.tail
        fates = self._obituaries.fates(_names(prefix, size)[first:])
        diverges, missed = None, list[Missed]()
        if matched == known - 1 and fates.count("held") == len(fates):
            missed += [Missed(first, 1, "partial")] * len(fates)  # it holds the token that is always computed
        else:
            told = index.explain(prefix)
            diverges = (told.position, told.expected, told.found) if told.position >= 0 else None
            missed += _runs(fates, first, told.elsewhere // size)
        if known % size:
            missed.append(Missed(known // size, 1, "partial"))
        self._kept.append(
            Explanation(step, request, label, prefix.root, known, matched, blocks, fetched, diverges, tuple(missed))
        )

    def why(self, wanted: str | RequestId) -> Mapping[str, Any] | None:
        """The last admission of a request, by label or number, as plain values; None if it is not kept."""
        for one in reversed(self._kept):
            if str(wanted) in (one.label, str(one.request)):
                return one.as_mapping({kept.request: kept.label for kept in self._kept})
        return None


def _names(prefix: Prefix, block_size: int) -> tuple[bytes, ...]:
    """Names of all full blocks, also of those that the request does not know yet."""
    names = prefix.names
    unnamed = prefix.tokens[_TOKEN * block_size * len(names) :]
    if len(unnamed) < _TOKEN * block_size:
        return names
    return names + extend_chain(names[-1] if names else root_name(prefix.root), unnamed, block_size)


def _runs(fates: Sequence[Obituary | Literal["held"] | None], first: int, elsewhere: int) -> Iterator[Missed]:
    """Blocks from `first` on by reason; another root holds the first `elsewhere` blocks of the prompt."""
    for fate, group in groupby(fates):
        count = len(list(group))
        if fate == "held":
            yield Missed(first, count, "incomplete")
        elif fate is not None:
            yield Missed(first, count, "evicted", fate)
        else:
            others = min(max(elsewhere - first, 0), count)
            if others:
                yield Missed(first, others, "other salt or adapter")
            if others < count:
                yield Missed(first + others, count - others, "never cached")
        first += count


def _plain(run: Missed, labels: Mapping[RequestId, str]) -> Mapping[str, Any]:
    plain: dict[str, Any] = {"first": run.first, "count": run.count, "reason": run.reason}
    if run.obituary is not None:
        request = run.obituary.request
        plain |= {"step": run.obituary.step, "for_request": request, "for_label": labels.get(request, "")}
    return plain
