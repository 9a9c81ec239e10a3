"""What a progress bar writes, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from asyncpage.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


def test_elsewhere_each_tenth_is_one_plain_line(seconds: Seconds) -> None:
    out = io.StringIO()
    progress = Progress("demo model", "B", out, seconds)
    for done in range(1001):
        seconds.now += 0.001
        progress.update(done * 10_000, 10_000_000)
    progress.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[5] == "demo model 50% 5.0 MB of 10.0 MB, 10.0 MB/s"
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_on_a_terminal_one_line_is_redrawn_at_most_every_tenth_of_a_second(
    seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    progress = Progress("requests", "req", out, seconds)
    for done in range(1, 101):
        seconds.now += 0.01
        progress.update(done, 100)
    progress.close()
    drawn = out.getvalue().split("\r\x1b[K")[1:]
    assert len(drawn) <= 12
    assert drawn[-1] == f"requests 100% 100 of 100 req, 100.0 req/s [{'#' * 30}]\n"
    assert out.getvalue().count("\n") == 1


def test_a_line_fits_a_narrow_terminal(seconds: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    seconds_before = seconds.now
    progress = Progress("requests", "req", out, seconds)
    seconds.now = seconds_before + 1
    progress.update(50, 100)
    assert max(map(len, out.getvalue().removeprefix("\r\x1b[K").split("\r\x1b[K"))) <= 60


def test_an_unknown_total_shows_what_came(seconds: Seconds) -> None:
    out = Terminal()
    progress = Progress("demo model", "B", out, seconds)
    seconds.now += 2.0
    progress.update(3_000_000, None)
    assert out.getvalue().endswith("demo model 3.0 MB, 1.5 MB/s")


def test_closing_what_was_never_drawn_writes_nothing(seconds: Seconds) -> None:
    out = Terminal()
    Progress("demo model", "B", out, seconds).close()
    assert out.getvalue() == ""
