"""A real server with the demo model, for every client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[str]:
    """Its address. Nothing that a client sends may make it say more than its start."""
    log = tmp_path_factory.mktemp("serve") / "stderr"
    with serving(log, ("--kv-cache-bytes", "512MiB", "--log-level", "warning")) as (url, _):
        yield url
    assert "Traceback" not in log.read_text()
