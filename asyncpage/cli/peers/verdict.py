"""The table of a comparison: medians, ratios, and whether each bar is held.

`scripts/compare_peers` prints it.

INVARIANT: a bar that was not measured, or only while others kept the machine busy, is never told as held.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

OWN = "asyncpage"


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of one run of one server. `other_cores`: kept busy by others meanwhile."""

    server: str
    run: int
    row: str
    value: float
    other_cores: float


@dataclass(frozen=True, slots=True)
class Row:
    """`must`: how many times better than llama.cpp it must be, on the same file; than any other peer, `must_others`.

    Without, `most` is what it may be at most, whatever the peers do.
    """

    name: str
    title: str
    better: Literal["more", "less"]
    digits: int
    must: float | None = None
    must_others: float | None = None
    most: float | None = None


ROWS: tuple[Row, ...] = (
    Row("single", "single: 32 in, 128 out, decode tok/s", "more", 1, must=1.6, must_others=1.2),
    Row("prefill", "prefill: 1,024 in, 1 out, tok/s", "more", 0, must=4.0, must_others=1.2),
    Row("c8", "c8: 16 requests, 8 in flight, 128 in, 64 out, tok/s", "more", 1, must=3.0, must_others=1.2),
    Row("c32", "c32: 32 at once, 128 in, 64 out, tok/s", "more", 1, must=4.0, must_others=1.2),
    Row("shared", "shared prefix: 32 requests, 768 + 32 in, 16 out, s", "less", 2, must=8.0, must_others=1.2),
    Row("itl_together", "ITL p99 of c8, ms", "less", 1, must=1.0),
    Row("itl_staggered", "ITL p99, one arrival every 250 ms, ms", "less", 1, must=1.0),
    Row("start", "start to first token, s", "less", 2, most=3.0),
    Row("rss", "peak RSS of all processes, GB", "less", 2, most=0.8),
)

_QUIET, _DISTURBED = "", "~"


@dataclass(frozen=True, slots=True)
class Bar:
    """`state`: "holds", "missed", or "open" where it could not be told."""

    row: str
    peer: str
    text: str
    state: Literal["holds", "missed", "open"]


class Verdict:
    """`most_other`: cores that others may use in a run that counts."""

    def __init__(self, measured: Iterable[Measured], peers: Sequence[str], most_other: float) -> None:
        self._peers, self._most_other = peers, most_other
        self._by: dict[tuple[str, str], list[Measured]] = {}
        for one in measured:
            self._by.setdefault((one.row, one.server), []).append(one)

    def median(self, row: str, server: str) -> float | None:
        """Of the runs that nobody disturbed, where there are any, else of all."""
        found = self._by.get((row, server), [])
        quiet = [one for one in found if one.other_cores <= self._most_other]
        values = [one.value for one in quiet or found]
        return statistics.median(values) if values else None

    def is_disturbed(self, row: str, server: str) -> bool:
        """Whether there is no run of it that nobody disturbed."""
        return all(one.other_cores > self._most_other for one in self._by.get((row, server), []))

    def ratio(self, row: Row, peer: str) -> float | None:
        """How many times better this engine is."""
        own, other = self.median(row.name, OWN), self.median(row.name, peer)
        if not own or not other:
            return None
        return own / other if row.better == "more" else other / own

    def bars(self) -> Iterator[Bar]:
        for row in ROWS:
            own = self.median(row.name, OWN)
            if row.most is not None:
                if own is not None:
                    yield Bar(row.name, "", f"<= {row.most:g}", self._state(own <= row.most, row.name, OWN))
                continue
            for peer in self._peers:
                must, ratio = self.must(row, peer), self.ratio(row, peer)
                if must is not None and ratio is not None:
                    yield Bar(row.name, peer, f">= {must:g} x", self._state(ratio >= must, row.name, OWN, peer))

    def must(self, row: Row, peer: str) -> float | None:
        return row.must if peer == "llamacpp" else row.must_others

    def _state(self, holds: bool, row: str, *servers: str) -> Literal["holds", "missed", "open"]:
        if any(self.is_disturbed(row, server) for server in servers):
            return "open"
        return "holds" if holds else "missed"


def table(verdict: Verdict, peers: Mapping[str, str]) -> list[str]:
    """Lines in Markdown, aligned. `peers`: titles by name, in the order of the columns."""
    bars: dict[str, list[Bar]] = {}
    for bar in verdict.bars():
        bars.setdefault(bar.row, []).append(bar)
    heads = ["", OWN, *(word for title in peers.values() for word in (title, "ratio")), "must", ""]
    lines = [heads]
    for row in ROWS:
        if verdict.median(row.name, OWN) is None and not any(verdict.median(row.name, peer) for peer in peers):
            continue
        cells = [row.title, _cell(verdict, row, OWN)]
        for peer in peers:
            ratio = verdict.ratio(row, peer)
            cells += [_cell(verdict, row, peer), "" if ratio is None else f"{ratio:.2f} x"]
        held = bars.get(row.name, [])
        cells += [", ".join(bar.text for bar in held), ", ".join(bar.state for bar in held)]
        lines.append(cells)
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    shown = ["| " + " | ".join(_aligned(line, widths)) + " |" for line in lines]
    rule = (
        "|" + "|".join(("-" * (width + 1) + ":") if at else "-" * (width + 2) for at, width in enumerate(widths)) + "|"
    )
    return [shown[0], rule, *shown[1:]]


def _cell(verdict: Verdict, row: Row, server: str) -> str:
    median = verdict.median(row.name, server)
    if median is None:
        return ""
    mark = _DISTURBED if verdict.is_disturbed(row.name, server) else _QUIET
    return f"{mark}{median:,.{row.digits}f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield cell.rjust(width) if at else cell.ljust(width)
