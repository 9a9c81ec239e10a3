"""What `asyncpage simulate --compare-index --json` printed, read back from a file for the chart room.

The application reads it once, when it is made.

INVARIANT: what is shown has both kinds of index with the same figures, and nothing but numbers and short texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncpage.errors import UsageError

KINDS = ("chain", "tree")
MOST_BYTES = 1 << 20

_HOW = "write one with 'asyncpage simulate --compare-index --json > FILE'"


def read_index_comparison(path: str) -> dict[str, Any]:
    """`{"trace": name, "dimensions": {dimension: {figure: [chain's, tree's]}}}`.

    Errors: `UsageError` when the file cannot be read or is something else.
    """
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"--index-comparison {path} has more than {MOST_BYTES} bytes; {_HOW}")
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--index-comparison {path} cannot be read: {error.strerror}; {_HOW}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--index-comparison {path} is not JSON; {_HOW}") from None
    try:
        chain, tree = (found[kind]["dimensions"] for kind in KINDS)
        dimensions = {
            str(dimension): {
                str(figure): [_plain(value), _plain(tree[dimension][figure])] for figure, value in own.items()
            }
            for dimension, own in chain.items()
        }
        return {"trace": str(found["trace"])[:200], "dimensions": dimensions}
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UsageError(f"--index-comparison {path} does not hold the figures of both indexes; {_HOW}") from None


def _plain(value: object) -> float | int | str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a figure is a number or a text")
    return value[:200] if isinstance(value, str) else value
