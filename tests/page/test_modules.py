"""The page's own tests, which node runs: one of them failed where this fails, and its report says which."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.test.mjs")))
def test_a_module_of_the_page_does_what_its_tests_say(file: str) -> None:
    node = shutil.which("node")
    assert node, "install node 20 or newer"
    ran = subprocess.run(
        [node, "--test", "--test-reporter=spec", str(FOLDER / file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
