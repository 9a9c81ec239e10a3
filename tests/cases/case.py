"""The case table: what each case asks for, read from `cases.jsonl`.

The tests name a case by its id; `suite` gives them the rest.

INVARIANT: ids are unique, and a tier is "core" or "extra".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("cases.jsonl")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the file. `requests` still hold their macros."""

    id: str
    tier: str
    category: str
    severity: str
    symptom: str
    expected: tuple[str, ...]
    invariants: tuple[str, ...]
    fixture: str
    config: Mapping[str, Any] = field(default_factory=dict)
    requests: tuple[Mapping[str, Any], ...] = ()
    steps: tuple[str, ...] = ()


@cache
def all_cases() -> Mapping[str, Case]:
    """Every case by its id, in the order of the file."""
    cases: dict[str, Case] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        case = Case(**{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})
        assert case.id not in cases, case.id
        assert case.tier in ("core", "extra"), case.tier
        cases[case.id] = case
    return cases
