"""There is one policy: whoever changes a line of it sees another replay, another simulation and another benchmark.

Each is asked by its command, in this process, so that none of them can decide by code of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from asyncpage import engine
from asyncpage.actors.simulated_executor import SimulatedExecutor
from asyncpage.cli.control_plane.clients import Answer
from asyncpage.cli.main import main
from asyncpage.core.policy import Fcfs, Key
from asyncpage.core.sequence import Sequence
from asyncpage.house import House, build
from asyncpage.messages import Finish, Handshake
from asyncpage.replay import stage
from tests.replay.recording import record

SIMULATE = ["simulate", "random", "--num-requests", "60", "--request-rate", "20", "--max-num-seqs", "4", "--json"]
# With a seventeenth client somebody always waits, so the policy has to choose.
BENCH = ["bench", "control-plane", "--load", "churn", "--running", "16", "--windows", "1", "--tokens", "2000", "--json"]


def last_come_first_served(self: Fcfs, sequence: Sequence) -> Key:
    """The line that is changed."""
    return (-sequence.arrival, sequence.arrival)


def test_a_changed_line_of_the_policy_changes_replay_simulation_and_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "run.journal"
    asyncio.run(record(journal, requests=60))
    answered: list[int] = []
    finished = Answer.finished

    def noted(answer: Answer, finish: Finish) -> None:
        answered.append(finish.request)
        finished(answer, finish)

    monkeypatch.setattr(Answer, "finished", noted)

    def outcomes() -> tuple[tuple[int, str], str, list[int]]:
        """Exit code and text of the replay, the simulation's figures, and whom the benchmark answered first."""
        capsys.readouterr()
        replayed = main(["replay", str(journal)]), capsys.readouterr().out
        assert main(SIMULATE) == 0
        figures = capsys.readouterr().out
        answered.clear()
        assert main(BENCH) == 0
        return replayed, figures, answered[:32]  # how many it answers in all depends on the machine

    (code, text), figures, order = outcomes()
    assert (code, text.partition(":")[0]) == (0, "every decision is the same")

    with monkeypatch.context() as changed:
        changed.setattr(Fcfs, "key", last_come_first_served)
        (other_code, other_text), other_figures, other_order = outcomes()
    assert other_code == 1
    assert "the first decision that differs" in other_text
    # Of those who wait, the last are served at once and the first at the very end.
    before, after = json.loads(figures), json.loads(other_figures)
    assert after["median_ttft_ms"] < before["median_ttft_ms"]
    assert after["p99_ttft_ms"] > before["p99_ttft_ms"]
    assert after["completed"] == before["completed"] == 60
    # Sixteen of the seventeen get a row, and answers have 1, 2, 3 ... tokens.
    assert order[0] == min(order)
    assert other_order[0] == min(order) + 1
    assert other_order != order

    (again_code, _), again_figures, again_order = outcomes()
    assert (again_code, again_figures, again_order) == (0, figures, order)


def test_all_three_are_built_by_the_one_function_and_differ_in_the_executor_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "run.journal"
    asyncio.run(record(journal, requests=10))
    built: list[House] = []
    executors: list[SimulatedExecutor] = []
    launch = SimulatedExecutor.launch_first

    def counted(*arguments: object, **named: object) -> House:
        built.append(build(*arguments, **named))  # type: ignore[arg-type]
        return built[-1]

    def launched(executor: SimulatedExecutor) -> Coroutine[Any, Any, Handshake]:
        executors.append(executor)
        return launch(executor)

    monkeypatch.setattr(engine, "build", counted)
    monkeypatch.setattr(stage, "build", counted)
    monkeypatch.setattr(SimulatedExecutor, "launch_first", launched)
    counts = []
    for command in (["replay", str(journal)], SIMULATE, BENCH):
        assert main(command) == 0
        counts.append((len(built), len(executors)))
    assert counts == [(1, 0), (2, 1), (3, 2)]  # nothing runs in a replay that could take a step
    assert len({tuple(type(actor) for actor in house.actors) for house in built[1:]}) == 1
    assert len({(type(house.scheduler), type(house.kv_manager)) for house in built}) == 1
