"""What became of a case: passed, refused or failed, kept apart from pytest's own outcomes.

A test reports through its item's `user_properties`, which reach the terminal also from another process;
`tests/conftest.py` prints the count at the end.

INVARIANT: only a feature that `MAY_LACK` names for the case can be refused; any other refusal fails the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PROPERTY = "case"

MAY_LACK: Mapping[str, tuple[str, ...]] = {}
"""Features that a case may find refused. Take a line out when its feature has come: then a refusal is a failure."""


class Refused(Exception):
    """The server said in its own words that it lacks a feature, and nothing of the rest can be tried without it."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature


def summary(reports: Iterable[Any]) -> list[str]:
    """The last lines of a run, [] when no case ran. A case of several tests is as good as the worst of them."""
    failed: set[str] = set()
    refused: dict[str, set[str]] = {}
    seen: set[str] = set()
    for report in reports:
        for name, value in report.user_properties:
            if name == PROPERTY:
                id, _, feature = value.partition(":")
                seen.add(id)
                if report.outcome == "failed":
                    failed.add(id)
                if feature:
                    refused.setdefault(id, set()).add(feature)
    refused = {id: features for id, features in refused.items() if id not in failed}
    if not seen:
        return []
    passed = len(seen) - len(failed) - len(refused)
    lines = [f"cases: {passed} passed, {len(refused)} refused, {len(failed)} failed"]
    lines += [f"  refused {id}: {', '.join(sorted(refused[id]))}" for id in sorted(refused)]
    lines += [f"  failed {id}" for id in sorted(failed)]
    return lines
