"""The set-up of the log."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator

import pytest
import structlog

from asyncpage.logs import configure_logs, configure_logs_unless_set


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Other tests see the log as they found it."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


def written(level: str, style: str) -> list[str]:
    out = io.StringIO()
    configure_logs(level, style, out)
    log = structlog.get_logger("asyncpage.test")
    log.debug("block.looked_at", block=6)
    log.info("block.evicted", block=7, step=412)
    log.error("actor.died", actor="kv")
    return out.getvalue().splitlines()


def test_json_lines_carry_event_level_time_and_fields() -> None:
    first, second = (json.loads(line) for line in written("info", "json"))
    assert first.pop("timestamp").endswith("Z")
    assert first == {"event": "block.evicted", "level": "info", "block": 7, "step": 412}
    assert (second["event"], second["level"]) == ("actor.died", "error")


def test_console_lines_are_for_people_and_uncoloured_off_a_terminal() -> None:
    first, second = written("info", "console")
    assert "block.evicted" in first
    assert "step=412" in first
    assert "\x1b[" not in first + second


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 1)])
def test_events_below_the_level_are_not_written(level: str, count: int) -> None:
    assert len(written(level, "json")) == count


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_no_local_variables(style: str) -> None:
    out = io.StringIO()
    configure_logs("info", style, out)
    secret = "the prompt"  # what must not be written
    try:
        raise ValueError(len(secret))
    except ValueError as error:
        structlog.get_logger().error("actor.died", exc_info=error)
    assert "ValueError" in out.getvalue()
    assert secret not in out.getvalue()


def test_a_log_set_up_by_the_embedding_program_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs_unless_set()
    structlog.get_logger().info("block.evicted")
    structlog.get_logger().warning("step.failed")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "step.failed" in captured.err
    assert "block.evicted" not in captured.err
    out = io.StringIO()
    configure_logs("debug", "json", out)
    configure_logs_unless_set()
    structlog.get_logger().debug("block.looked_at")
    assert "block.looked_at" in out.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_stream_that_cannot_be_written_costs_lines_and_never_the_work_that_logs(style: str) -> None:
    closed = io.StringIO()
    configure_logs("info", style, closed)
    closed.close()
    structlog.get_logger().error("actor.died")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", closefd=False) as pipe:
        configure_logs("info", style, pipe)
        structlog.get_logger().error("actor.died")
        with contextlib.suppress(OSError):  # what the file still holds has nowhere to go either
            pipe.close()
    os.close(writer)


def test_lines_go_to_the_standard_error_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logs("info", "json")
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    structlog.get_logger().info("block.evicted")
    assert "block.evicted" in out.getvalue()


@pytest.mark.parametrize(("level", "style"), [("loud", "json"), ("info", "xml")])
def test_words_that_name_no_level_or_style_are_refused(level: str, style: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        configure_logs(level, style)
