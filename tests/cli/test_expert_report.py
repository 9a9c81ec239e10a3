"""`asyncpage doctor --expert-load`: what a measured load says, in even shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncpage.cli.expert_report import report
from asyncpage.cli.main import main
from asyncpage.formats.expert_load import write_expert_load


def test_each_layer_says_its_busiest_expert_and_rank() -> None:
    found = dict(report({3: (90, 10, 80, 20), 4: (0, 0), 5: (6, 0)}, 2))
    # 90 of 200 are 1.8 quarters; in turn a rank has 170, which are 1.7 halves.
    assert found["experts of layer 3"] == (
        "200 rows over 4 experts, 0 of them idle; the busiest is 0 with 1.80 of an even share; "
        "of 2 ranks 1.70 when placed in turn, 1.00 by this load"
    )
    assert found["experts of layer 4"] == "2 experts have served nothing yet"
    assert "1 of them idle; the busiest is 0 with 2.00 of an even share" in found["experts of layer 5"]


def test_one_rank_or_more_ranks_than_experts_are_not_compared() -> None:
    assert all("ranks" not in found for ranks in (1, 3) for _, found in report({0: (1, 2)}, ranks))


def test_the_doctor_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_expert_load(tmp_path / "load.json", {0: (1, 2, 3)})
    assert main(["doctor", "--json", "--expert-load", str(tmp_path / "load.json"), "--expert-parallel-size", "3"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["name"] == "experts of layer 0"
    assert "of 3 ranks 1.50" in finding["found"]
    assert main(["doctor", "--expert-load", str(tmp_path / "nothing.json")]) == 1
    assert "no such file" in capsys.readouterr().err
