"""The table and the tests: every case has one, in its tier, and the macros say what the table means."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.case import all_cases
from tests.cases.macros import Names, expand, sweep, to_json
from tests.cases.verdict import MAY_LACK, PROPERTY, summary

HERE = Path(__file__).parent


def _covered() -> Iterator[tuple[str, bool]]:
    """Each `@covers` in the tests here: the case, and whether it is left out of ordinary runs."""
    for file in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "covers":
                (id,) = node.args
                assert isinstance(id, ast.Constant)
                is_long = any(word.arg == "long" for word in node.keywords)
                yield str(id.value), is_long


def test_every_case_has_a_test_and_every_core_case_one_in_ordinary_runs() -> None:
    covered = list(_covered())
    assert {id for id, _ in covered} == set(all_cases())
    core = {case.id for case in all_cases().values() if case.tier == "core"}
    assert core <= {id for id, is_long in covered if not is_long}


def test_only_cases_of_the_table_may_be_refused() -> None:
    assert set(MAY_LACK) <= set(all_cases())


NAMES = Names({"$M": "tiny"}, vocab_size=20, ids={"<eos>": 1})


@pytest.mark.parametrize(
    ("macro", "meaning"),
    [
        ({"$repeat": [["a"], 3]}, ["a", "a", "a"]),
        ({"$repeat": ["z", 3]}, "zzz"),
        ({"$range": [3, 7]}, [3, 4, 5, 6]),
        ({"$range": [18, 22]}, [18, 19, 5, 6]),
        ({"$concat": ["a", {"$repeat": ["b", 2]}, "\r\n"]}, "abb\r\n"),
        ({"$tokens": ["<eos>"]}, [1]),
        ({"$bias_all": 2}, {"0": 1, "1": 1}),
        ({"model": "$M", "$vocab_size": 5, "$id(<eos>)": 0}, {"model": "tiny", "20": 5, "1": 0}),
        ({"$hex": "ff00"}, b"\xff\x00"),
    ],
)
def test_a_macro_means_what_the_table_says(macro: object, meaning: object) -> None:
    assert expand(macro, NAMES) == meaning


def test_literals_reach_the_wire_as_they_are_spelled() -> None:
    body = expand({"a": {"$raw": "1e999"}, "b": [{"$nest": ["[", "1", "]", 3]}], "c": "\0"}, NAMES)
    assert to_json(body) == b'{"a": 1e999, "b": [[[[1]]]], "c": "\\u0000"}'


def test_a_sweep_is_one_request_for_each_value() -> None:
    request = {"json": {"prompt": {"$range": [7, {"$sweep": [8, 10]}]}}}
    assert [json.dumps(one["json"]["prompt"]) for one in sweep(request)] == [
        '{"$range": [7, 8]}',
        '{"$range": [7, 9]}',
        '{"$range": [7, 10]}',
    ]


class _Report:
    def __init__(self, outcome: str, *values: str) -> None:
        self.outcome = outcome
        self.user_properties = [(PROPERTY, value) for value in values]


def test_a_refused_case_is_neither_passed_nor_failed() -> None:
    reports = [
        _Report("passed", "A-1:"),
        _Report("passed", "B-1:", "B-1:adapters"),
        _Report("passed", "B-1:"),
        _Report("failed", "C-1:", "C-1:tool calls"),
        _Report("passed", "C-1:"),
    ]
    assert summary(reports) == ["cases: 1 passed, 1 refused, 1 failed", "  refused B-1: adapters", "  failed C-1"]
    assert summary([]) == []
