"""What the schemas of the structured-output cases mean, each as a plain Python predicate.

`test_structured_output` holds answers to them. Written from the JSON Schema specification (2020-12), keyword by
keyword, for just these schemas.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any


def is_integer(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_date(value: Any) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return False
    if value.startswith("0000"):  # a year of the specification, and none of Python's
        value = "2000" + value[4:]
    try:
        datetime.date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _starts_with_s(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name.startswith("S_") and isinstance(item, str) for name, item in value.items()
    )


KEYWORDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool]], ...] = (
    (("minimum", "maximum"), lambda value: is_integer(value) and 3 <= value <= 5),
    (("multipleOf",), lambda value: is_number(value) and value * 2 == int(value * 2)),
    (("uniqueItems",), lambda value: isinstance(value, list) and sorted(value) == [1, 2, 3]),
    (("format",), _is_date),
    (("pattern", "maxLength"), lambda value: isinstance(value, str) and bool(re.fullmatch("a{1,4}", value))),
    (("patternProperties",), _starts_with_s),
    (("required",), lambda value: isinstance(value, dict) and "a" in value),
    (("not",), lambda value: not isinstance(value, str)),
    (("allOf",), lambda value: is_integer(value) and value >= 7),
    (("oneOf",), lambda value: is_integer(value) and value != 1),
    (("prefixItems", "items"), lambda value: value in ([], [1])),
    (("if", "then"), lambda value: not isinstance(value, dict) or "z" in value),
    (("propertyNames",), lambda value: isinstance(value, dict) and all(len(name) <= 2 for name in value)),
    (("dependentRequired",), lambda value: isinstance(value, dict) and ("a" not in value or "b" in value)),
)
"""In the order of the case's requests: the keywords that a refusal may name, and what a valid answer is."""


def is_tree(value: Any) -> bool:
    """The self-recursive schema: an object of nothing but "c", a list of such objects."""
    stack = [value]
    while stack:
        item = stack.pop()
        if not isinstance(item, dict) or set(item) != {"c"} or not isinstance(item["c"], list):
            return False
        stack += item["c"]
    return True


def longest_whitespace(text: str) -> int:
    """The longest run of white space between the tokens of JSON, strings aside."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return max((len(run) for run in re.findall(r"[ \t\n\r]+", outside)), default=0)
