"""The demo model, fetched once for all tests that run a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncpage import store


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The GGUF file of the demo model."""
    return store.fetch_demo()
