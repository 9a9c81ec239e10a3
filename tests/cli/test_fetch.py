"""`asyncpage fetch ORG/NAME` as a user runs it: the environment says where the hub is and who asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpage.cli.main import main
from asyncpage.hub import name as hub_name
from tests.hub.hub_server import COMMIT, FakeHub, served

FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}


def run(hub: FakeHub, cache: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asyncpage", "fetch", *words],
        env={
            **os.environ,
            "HF_HOME": str(cache),
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_CACHE": str(cache),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_path_is_all_of_the_output_and_progress_is_told_beside_it(tmp_path: Path) -> None:
    with served(FILES) as hub:
        done = run(hub, tmp_path, "org/tiny", "--revision", "v1", HF_TOKEN="hf_topsecret")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path}/models--org--tiny/snapshots/{COMMIT}\n"
        assert (tmp_path / "models--org--tiny" / "refs" / "v1").read_text() == COMMIT
        assert {asked.authorization for asked in hub.asked} == {"Bearer hf_topsecret"}
        assert len(hub.asked) == 3  # the list and two files: nothing else is told or asked
        lines = done.stderr.splitlines()
        assert {line.split()[0] for line in lines} == {"downloading", "checking"}
        assert all("% 0.0 MB of 0.0 MB" in line for line in lines)
        assert "topsecret" not in done.stderr


def test_a_hub_that_may_not_be_asked_is_one_line(tmp_path: Path) -> None:
    with served(FILES) as hub:
        done = run(hub, tmp_path, "org/tiny", HF_HUB_OFFLINE="1")
        assert (done.returncode, done.stdout, hub.asked) == (2, "", [])
        assert done.stderr == (
            "asyncpage: org/tiny is not downloaded while HF_HUB_OFFLINE is set; unset it and run it again\n"
        )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["fetch", "org/tiny@v1", "--revision", "v2"], "has a revision already; leave --revision v2 out"),
        (["fetch", "org/tiny", "--revision", "../v2"], "--revision ../v2 cannot be a branch, tag or commit"),
        (["fetch", "demo", "--revision", "v2"], "'demo' cannot be fetched with --revision"),
        (["fetch", "a/b/c"], "'a/b/c' cannot be fetched; type 'demo', or ORG/NAME"),
    ],
)
def test_words_that_do_not_fit_are_told(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_without_the_extra_the_line_for_pip_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub_name, "find_spec", lambda name: None)
    assert main(["fetch", "org/tiny"]) == 2
    assert "pip install 'asyncpage[hub]', then: asyncpage fetch org/tiny" in capsys.readouterr().err
