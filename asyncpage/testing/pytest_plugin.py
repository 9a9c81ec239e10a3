"""Adds the options of the attention conformance kit to pytest; found by pytest's own entry point.

Runs in every pytest of an environment that has asyncpage, so it imports nothing but pytest.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("asyncpage.testing.attention", "asyncpage.testing.attention_scene")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--attention-backend NAME` and `--attention-device KIND`."""
    group = parser.getgroup("asyncpage")
    group.addoption(
        "--attention-backend",
        default="reference",
        metavar="NAME",
        help="the attention backend that asyncpage.testing.attention examines",
    )
    group.addoption(
        "--attention-device",
        default="auto",
        metavar="KIND",
        help="where it runs: cpu, cuda, or auto (cuda where the machine has it)",
    )
