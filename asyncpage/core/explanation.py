"""Why a request found what it found in the cache, and why no more.

The KV manager tells of every request that it lets in, between the match and the first block that is taken for it, and
asks when somebody wants to know. What could change later is looked up at once: where the cached tokens part from the
prompt, and what became of each block that was missed. It is kept as runs of blocks, the mapping is made when asked for.

INVARIANT: at most `most` explanations are kept; every block of a request is matched or has exactly one reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Literal

from asyncpage.core.block_names import extend_chain, root_name, root_parts
from asyncpage.core.obituaries import Obituaries, Obituary
from asyncpage.core.prefix_index import Divergence, Match, PrefixIndex
from asyncpage.messages import Prefix, RequestId
from asyncpage.records import record

Reason = Literal["never cached", "evicted", "other salt or adapter", "incomplete", "partial"]
"""Why a block was computed.

"incomplete": it is cached, but a block before it, or its part of a sliding window, is not. "partial": it is the last
one, and is not full or has the one token that is always computed. Of a partial block, and of the first one missed,
tokens may still have been reused: the matched ones say how many.
"""

_Fate = Obituary | Literal["held"] | None
_TOKEN = 4  # bytes, int32 little-endian


@record(frozen=True, slots=True)
class Explanation:
    """What one admission found. `known`: its tokens, with what it had generated before it was preempted.

    `matched`: tokens that it need not compute, with those that were fetched from outside the device. `told`: where the
    cached tokens part from the prompt; None when every full block that was missed is there. `fates`: of those blocks,
    in order and with their number; None when nothing is known of any.
    """

    step: int
    request: RequestId
    label: str
    root: bytes
    known: int
    matched: int
    matched_blocks: int
    fetched_blocks: int
    told: Divergence | None
    fates: tuple[tuple[_Fate, int], ...] | None

    def as_mapping(self, labels: Mapping[RequestId, str]) -> Mapping[str, Any]:
        """Plain values, fit for JSON. `labels`: of the requests that blocks were evicted for, where they are known."""
        parts = root_parts(self.root)
        told = self.told
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
            "diverges": None
            if told is None or told.position < 0
            else {"position": told.position, "expected": told.expected, "found": told.found},
            "missed": list(self._missed(int(parts["block"]), labels)),
        }

    def _missed(self, block_size: int, labels: Mapping[RequestId, str]) -> Iterator[Mapping[str, Any]]:
        """Runs of blocks that were computed, each with its reason."""
        first = self.matched_blocks + self.fetched_blocks
        full = self.known // block_size
        for fate, count in ((None, full - first),) if self.fates is None else self.fates:
            if not count:
                break
            if self.told is None:
                yield _run(first, count, "partial")  # it holds the token that is always computed
            elif fate == "held":
                yield _run(first, count, "incomplete")
            elif fate is not None:
                evicted_for = {"for_request": fate.request, "for_label": labels.get(fate.request, "")}
                yield {**_run(first, count, "evicted"), "step": fate.step, **evicted_for}
            else:  # another root holds the first blocks of the prompt
                others = min(max(self.told.elsewhere // block_size - first, 0), count)
                if others:
                    yield _run(first, others, "other salt or adapter")
                if others < count:
                    yield _run(first + others, count - others, "never cached")
            first += count
        if self.known % block_size:
            yield _run(full, 1, "partial")


def _run(first: int, count: int, reason: Reason) -> dict[str, Any]:
    return {"first": first, "count": count, "reason": reason}


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
        if len(prefix.names) < known // size:
            prefix = Prefix(prefix.root, prefix.tokens, _names(prefix, size))
        missing = prefix.names[first:]
        held = index.held(missing)
        fates = None
        if held or not self._obituaries.knows_none(missing):
            obituary_of = self._obituaries.find
            each: list[_Fate] = ["held" if name in held else obituary_of(name) for name in missing]
            fates = tuple([(fate, len(list(run))) for fate, run in groupby(each)])
        is_all_there = matched == known - 1 and len(held) == len(missing)
        told = None if is_all_there else index.explain(prefix, match)
        self._kept.append(Explanation(step, request, label, prefix.root, known, matched, blocks, fetched, told, fates))

    def label_of(self, request: RequestId) -> str:
        """The client-visible id of a request, "" when it is not remembered."""
        return next((kept.label for kept in reversed(self._kept) if kept.request == request), "")

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
    return names + extend_chain(names[-1] if names else root_name(prefix.root), unnamed, block_size)
