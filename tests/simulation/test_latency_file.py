"""Latency models in files."""

from pathlib import Path

import pytest

from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError
from asyncpage.simulation.fit import Fit
from asyncpage.simulation.latency_file import latency_text, read_latency
from asyncpage.simulation.run import Machine


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path) -> None:
    latency = StepLatency(1 / 3, 1e-7 / 3, 0.0, 2e-5, 1.1e-4, 5e-324, 1e-9 / 3, 1e-3 / 7)
    file = tmp_path / "mine.toml"
    file.write_text(latency_text(Fit(latency, 99, 0.9, 1e-4, 1.0), "cpu", "run.journal", "--max-num-seqs 8"))
    assert read_latency(file) == Machine(latency, "cpu")


def test_what_a_file_does_not_name_costs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "older.toml"
    file.write_text('[latency]\ndevice = "cpu"\nbase_s = 0.25\n')
    assert read_latency(file) == Machine(StepLatency(base_s=0.25), "cpu")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x", "is not TOML"),
        ("[server]\nport = 1", "has no table"),
        ("[latency]\nbase = 1.0", "has no key base; it has device, base_s"),
        ("[latency]\nbase_s = 'x'", "must be a number of seconds"),
        ("[latency]\nbase_s = -1", "0 or more"),
        ("[latency]\nbase_s = inf", "0 or more"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=match):
        read_latency(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_latency(tmp_path / "none.toml")
