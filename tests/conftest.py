"""What all tests share: the log as they found it, and two real models, each fetched once for those that run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from asyncpage import store
from tests import embedding_model as minilm


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
