"""The table of a comparison: medians, ratios, and bars that hold only when they were measured in peace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncpage.cli.peers.verdict import OWN, Measured, Verdict, table

TITLES = {"llamacpp": "llama.cpp", "openvino": "OpenVINO GenAI"}


def runs(server: str, row: str, *values: float, others: float = 0.0) -> Iterator[Measured]:
    for number, value in enumerate(values, 1):
        yield Measured(server, number, row, value, others)


def states(*measured: Measured, peers: tuple[str, ...] = ("llamacpp",)) -> dict[tuple[str, str], str]:
    return {(bar.row, bar.peer): bar.state for bar in Verdict(measured, peers, 0.1).bars()}


def test_a_ratio_is_that_of_medians_and_says_how_many_times_better() -> None:
    measured = [
        *runs(OWN, "single", 90.0, 200.0, 160.0),
        *runs("llamacpp", "single", 100.0, 80.0, 120.0),
        *runs(OWN, "shared", 5.0, 4.0, 6.0),
        *runs("llamacpp", "shared", 50.0, 30.0, 40.0),
    ]
    verdict = Verdict(measured, ["llamacpp"], 0.1)
    by_row = {bar.row: bar for bar in verdict.bars()}
    assert (by_row["single"].text, by_row["single"].state) == (">= 1.6 x", "holds")  # 160 over 100
    assert (by_row["shared"].text, by_row["shared"].state) == (">= 8 x", "holds")  # 40 over 5, exactly
    lines = table(verdict, {"llamacpp": "llama.cpp"})
    assert len({len(line) for line in lines}) == 1
    assert "160.0" in lines[2]
    assert "1.60 x" in lines[2]
    assert "8.00 x" in lines[3]


@pytest.mark.parametrize(
    ("row", "own", "peer", "state"),
    [
        ("single", 159.0, 100.0, "missed"),
        ("prefill", 400.0, 100.0, "holds"),
        ("c8", 299.0, 100.0, "missed"),
        ("c32", 400.0, 100.0, "holds"),
        ("shared", 5.1, 40.0, "missed"),
        ("itl_together", 97.0, 97.0, "holds"),
        ("itl_staggered", 97.1, 97.0, "missed"),
    ],
)
def test_bars_against_llama_cpp(row: str, own: float, peer: float, state: str) -> None:
    assert states(*runs(OWN, row, own), *runs("llamacpp", row, peer)) == {(row, "llamacpp"): state}


def test_every_other_peer_is_to_be_beaten_by_a_fifth() -> None:
    measured = (*runs(OWN, "prefill", 480.0), *runs("llamacpp", "prefill", 100.0), *runs("openvino", "prefill", 401.0))
    found = states(*measured, peers=("llamacpp", "openvino"))
    assert found == {("prefill", "llamacpp"): "holds", ("prefill", "openvino"): "missed"}


def test_start_and_memory_are_held_to_what_they_may_be() -> None:
    assert states(*runs(OWN, "start", 3.1), *runs(OWN, "rss", 0.8)) == {("start", ""): "missed", ("rss", ""): "holds"}


def test_disturbed_runs_count_only_where_there_are_no_others_and_then_no_bar_is_told() -> None:
    quiet = runs(OWN, "single", 200.0)
    disturbed = list(runs(OWN, "single", 50.0, 50.0, others=0.4))
    peer = list(runs("llamacpp", "single", 100.0))
    assert states(*disturbed, *quiet, *peer) == {("single", "llamacpp"): "holds"}
    assert states(*disturbed, *peer) == {("single", "llamacpp"): "open"}
    shown = table(Verdict([*disturbed, *peer], ["llamacpp"], 0.1), TITLES)
    assert "~50.0" in shown[2]
    assert "open" in shown[2]


def test_what_was_not_measured_is_no_line_and_no_bar() -> None:
    verdict = Verdict(list(runs(OWN, "c8", 100.0)), ["llamacpp"], 0.1)
    assert list(verdict.bars()) == []
    assert len(table(verdict, TITLES)) == 3
