"""What all tests share: the log as they found it, two real models, each fetched once for those that run it, the kinds
of test that run only when asked for, and the count of the cases at the end of a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from asyncpage import store
from asyncpage.kernels import loaded
from tests import embedding_model as minilm
from tests.cases import verdict

ON_REQUEST: Mapping[str, str] = {
    "long": "tests that take minutes: more repeats, rarer cases, soaks",
    "extras": "tests of extras whose packages take a gigabyte: xgrammar",
    "clients": "tests of clients whose packages take gigabytes: benchmarks, evaluations",
}
"""Markers of tests that are left out unless the option of the same name is given: `scripts/test --long`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("asyncpage")
    for name, what in ON_REQUEST.items():
        group.addoption(f"--{name}", action="store_true", help=f"run {what} too")
    group.addoption("--strict-times", action="store_true", help="hold cases to their times as written: a quiet machine")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's job in the background: tests wait for Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, what in ON_REQUEST.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    config.addinivalue_line("markers", "case(id): the case of tests/cases/cases.jsonl that the test checks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = {name for name in ON_REQUEST if not config.getoption(f"--{name}")}
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unwanted)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for kind in ("passed", "failed", "error") for report in terminalreporter.stats.get(kind, ())]
    for line in verdict.summary(report for report in reports if hasattr(report, "user_properties")):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A command that is over ignores signals, as its process ends; here more comes after it, and children inherit."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _log_restored() -> Iterator[None]:
    """structlog's own `capture_logs` sets it up for good, to tell everything on standard output."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The GGUF file of the demo model."""
    return store.fetch_demo()


@pytest.fixture(scope="session")
def embedding_model() -> Path:
    """The folder of a BERT model for embeddings, with the files that sentence-transformers puts beside it."""
    return minilm.fetch()


@pytest.fixture(autouse=True)
def _native_code_unopened() -> Iterator[None]:
    """What a test has opened, or has found lacking, in this process is nothing to the next one."""
    yield
    loaded._current = None
