"""Pictures of the engine as JSON for the chart room: the first one whole, the others as what has changed.

The chart route calls it with what the lookout saw. Columns are base64 of little-endian numbers, so that a pool of
100,000 blocks is one short string and the page reads it without a loop over JSON.

INVARIANT: a picture and then every change, in order, give the columns of the last sight.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncpage.lookout import Sight
from asyncpage.messages import BlockChart, BlockSight
from asyncpage.text.token_logprobs import TokenTable

_MILLI = 1000


def whole(sight: Sight, state: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything. `about`: what stays the same while the engine runs."""
    chart = sight.blocks
    return {
        "kind": "whole",
        "about": about,
        "blocks": {"total": len(chart.owners), **_columns(chart, slice(None))},
        "rows": _rows(chart),
        **_moving(sight, state),
        "steps": _steps(sight, -1),
    }


def change(before: Sight, sight: Sight, state: str) -> dict[str, Any]:
    """What is different from `before`. A pool of another size comes from another executor: it is told whole."""
    old, new = before.blocks, sight.blocks
    frame: dict[str, Any] = {"kind": "change", **_moving(sight, state)}
    if len(old.owners) != len(new.owners):
        frame["blocks"] = {"total": len(new.owners), **_columns(new, slice(None))}
    else:
        differs = (old.owners != new.owners) | (old.references != new.references) | (old.named != new.named)
        at = np.flatnonzero(differs)
        if len(at):
            frame["blocks"] = {"at": _base64(at.astype("<i4")), **_columns(new, at)}
    if not np.array_equal(old.requests, new.requests):
        frame["rows"] = _rows(new)
    last = before.steps[-1].at_s if before.steps else -1
    if steps := _steps(sight, last):
        frame["steps"] = steps
    return frame


def is_news(frame: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether there is anything to draw: blocks, rows or steps, or numbers other than the questions' own traffic."""
    if frame.keys() & {"blocks", "rows", "steps"} or frame["state"] != before["state"]:
        return True
    return bool(frame["stats"] != before["stats"])


def encode(frame: Mapping[str, Any]) -> bytes:
    """As a server-sent event."""
    return b"data: " + json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n\n"


def describe(sight: BlockSight, tokens: TokenTable | None) -> dict[str, Any]:
    """One block as its JSON object; without `tokens` only how many it holds is told."""
    ids = np.frombuffer(sight.tokens, dtype="<i4").tolist()
    return {
        "block": sight.block,
        "references": sight.references,
        "name": sight.name.hex() or None,
        "parent": sight.parent.hex() or None,
        "chain": list(sight.chain),
        "holders": [
            {"row": one.row, "request": one.request, "id": one.label, "group": one.group, "index": one.index}
            for one in sight.holders
        ],
        "token_count": len(ids),
        "tokens": None if tokens is None else [{"id": id, "text": tokens.token_text(id)} for id in ids],
    }


def _moving(sight: Sight, state: str) -> dict[str, Any]:
    return {
        "at": round(sight.at_s, 3),
        "state": state,
        "boxes": {
            name: {
                "waiting": box.waiting,
                "deepest": box.deepest,
                "capacity": box.capacity,
                "passed": dict(box.messages),
            }
            for name, box in sight.boxes.items()
        },
        "stats": {actor: dict(numbers) for actor, numbers in sight.stats.items()},
    }


def _rows(chart: BlockChart) -> list[list[int]]:
    """Row and request of every row that somebody lives in."""
    rows = np.flatnonzero(chart.requests)
    return np.stack((rows, chart.requests[rows]), axis=1).tolist()  # type: ignore[no-any-return]


def _steps(sight: Sight, after_s: float) -> list[list[float]]:
    return [
        [
            step.number,
            round(step.at_s, 4),
            step.rows,
            step.prefill_tokens,
            step.decode_tokens,
            step.preempted,
            round(step.elapsed_us / _MILLI, 3),
        ]
        for step in sight.steps
        if step.at_s > after_s
    ]


def _columns(chart: BlockChart, at: slice | NDArray[np.int64]) -> dict[str, str]:
    return {
        "owners": _base64(chart.owners[at].astype("<i4")),
        "references": _base64(chart.references[at]),
        "named": _base64(chart.named[at].astype(np.uint8)),
    }


def _base64(column: NDArray[Any]) -> str:
    return b64encode(column.tobytes()).decode("ascii")
