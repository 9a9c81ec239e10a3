"""The control plane's benchmark: what it counts, what it is held to, and that it measures the engine that serves."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.actors.scheduler import Scheduler
from asyncpage.cli.control_plane.result import Result, below, table
from asyncpage.cli.control_plane.sse import rate_of
from asyncpage.cli.control_plane.sse_clients import Words
from asyncpage.cli.main import main
from asyncpage.core.memory import Memory
from asyncpage.simulation.house_meter import ACTORS, NAMING, HouseMeter

GOOD = Result(
    load="steady",
    running=256,
    tokens_per_s=1_000_000,
    wall_tokens_per_s=900_000,
    step_us=256.0,
    step_tokens=256.0,
    actors_us=dict.fromkeys((*ACTORS, NAMING), 10.0),
    settle_us=30.0,
)


def test_a_result_at_its_bars_is_not_below_them_and_one_behind_is() -> None:
    assert below([GOOD]) == []
    (slow,) = below([replace(GOOD, tokens_per_s=999_999)])
    assert slow == "steady 256: 999,999 tokens/s, the bar is 1,000,000"
    (late,) = below([replace(GOOD, settle_us=30.1)])
    assert "30.1 us a step, the bar is 30" in late
    assert below([replace(GOOD, running=512, tokens_per_s=1, settle_us=1000)]) == []  # that size has no bar


def test_a_step_may_grow_with_its_rows_and_not_faster() -> None:
    large = replace(GOOD, running=4096)
    assert below([replace(large, step_us=4096.0), GOOD]) == []
    (steep,) = below([GOOD, replace(large, step_us=4097.0)])
    assert steep == "steady 4096: a step takes 4097 us, linear growth from 256 allows 4096"


def test_the_table_has_a_column_for_each_load_and_all_of_a_steps_time() -> None:
    lines = table([GOOD, replace(GOOD, load="churn")]).splitlines()
    assert lines[0].split() == ["steady", "256", "churn", "256"]
    told = {line[:28].strip(): line[28:].split() for line in lines[1:]}
    assert told["scheduler"] == ["10.0", "10.0"]
    assert told["loop, mailboxes, sockets"] == ["186.0", "186.0"]  # 256 - 7 x 10
    assert told["us a token"] == ["1.00", "1.00"]


@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=3), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    ends=st.booleans(),
)
def test_words_are_counted_in_whatever_pieces_they_come(texts: list[str], cuts: list[int], ends: bool) -> None:
    events = [b'data: {"choices":[{"text":%b}]}\n\n' % json.dumps(f" {text}").encode() for text in texts]
    events.append(b"data: [DONE]\n\n")
    frames = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    answer = b"HTTP/1.1 200 OK\r\nServer: a b c\r\n\r\n" + b"".join(frames) + (b"0\r\n\r\n" if ends else b"")
    words = Words()
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    for start, end in pairwise(places):
        words.take(answer[start:end])
    assert (words.count, words.is_over, words.is_whole) == (len(texts), ends, ends)


def test_the_meter_leaves_no_trace() -> None:
    before = dict(vars(Scheduler)), dict(vars(Memory))
    with HouseMeter():
        assert vars(Scheduler)["receive"] is not before[0]["receive"]
    assert (dict(vars(Scheduler)), dict(vars(Memory))) == before


@pytest.mark.parametrize("load", ["steady", "churn", "sse"])
def test_each_load_runs_and_tells_where_the_time_went(load: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--running", "6", "--windows", "1", "--tokens", "600"]
    assert main(["bench", "control-plane", "--load", load, *size, "--json"]) == 0  # six rows have no bar
    told = json.loads(capsys.readouterr().out)
    assert told["below"] == []
    (result,) = told["loads"]
    assert (result["load"], result["running"]) == (load, 6)
    assert 5 <= result["tokens_a_step"] <= 6
    assert result["tokens_per_s"] > 0
    assert set(result["actors_us"]) == {*ACTORS, NAMING}
    for name in ("scheduler", "kv_manager", "executor", "detokenizer", "frontend"):
        assert result["actors_us"][name] > 0
    assert (result["actors_us"]["tokenizer"] > 0) is (load == "churn")


def test_standard_output_is_the_result_alone_however_the_log_was_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()
    structlog.configure(**structlog.get_config())  # its own defaults, which write every event to standard output
    size = ["--running", "6", "--windows", "1", "--tokens", "600"]
    assert main(["bench", "control-plane", "--load", "steady", *size, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [result["load"] for result in told["loads"]] == ["steady"]


@pytest.mark.parametrize(
    ("told", "rate"),
    [
        ([(0.2, 900)], 4500),  # over before a second look
        ([(0.1 * look, 300 * look) for look in range(1, 6)], 3000),
        ([(0.1 * look, 300 * look) for look in range(1, 12)], 3000),
        ([(0.5 * look, tokens) for look in range(21) for tokens in [[0, 10, 1010, 2010, 2020][look // 5]]], 400),
    ],
    ids=["one look", "no whole span", "two spans", "slow at both ends"],
)
def test_the_clients_rate_is_told_from_as_much_as_they_saw(told: list[tuple[float, int]], rate: float) -> None:
    assert rate_of(told) == pytest.approx(rate)


def test_a_bar_that_is_missed_is_told_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from asyncpage.cli.control_plane import result

    monkeypatch.setattr(result, "RATE_BARS", {("steady", 6): 1e12})
    size = ["--running", "6", "--windows", "1", "--tokens", "600"]
    assert main(["bench", "control-plane", "--load", "steady", *size]) == 1
    told = capsys.readouterr()
    assert "steady 6" in told.out
    assert "below its bar: steady 6: " in told.err


def test_sizes_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--running", "--windows", "--tokens"):
        assert main(["bench", "control-plane", flag, "0"]) == 2
        assert f"{flag} must be at least 1, got 0" in capsys.readouterr().err
