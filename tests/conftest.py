"""What all tests share: the log as they found it, and the demo model, fetched once for those that run a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from asyncpage import store


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
