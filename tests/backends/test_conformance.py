"""The built-in backends pass the kit that is shipped for others."""

import subprocess
import sys

import pytest

from asyncpage.backends.registry import load
from asyncpage.testing.attention import *  # noqa: F403
from asyncpage.testing.attention import fixture_attention_device  # noqa: F401


@pytest.fixture(name="attention_backend", params=["reference", "cpu", "native"])
def fixture_attention_backend(request):
    return load(request.param)


def test_the_kit_runs_by_its_documented_command():
    command = ["-m", "pytest", "--pyargs", "asyncpage.testing.attention", "--attention-backend", "cpu"]
    options = ["-q", "-p", "no:cacheprovider", "-k", "contract or padding or 80"]
    done = subprocess.run([sys.executable, *command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout
