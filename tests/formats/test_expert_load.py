"""The file of measured expert load: whole or not at all, and nobody else's JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.expert_load import read_expert_load, write_expert_load


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    for tokens in ({0: (3, 0, 2**40)}, {1: (1,), 12: (0, 0)}):
        write_expert_load(path, tokens)
        assert read_expert_load(path) == tokens
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "load.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_expert_load(tmp_path / "load.json", {0: (1,)})
    assert list(tmp_path.iterdir()) == [tmp_path / "load.json"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "tokens: is not an object of layers"),
        ('{"tokens": []}', "is not an object of layers"),
        ('{"tokens": {"one": [1]}}', "tokens.one: is no list of counts"),
        ('{"tokens": {"-1": [1]}}', "tokens.-1: is no list of counts"),
        ('{"tokens": {"0": []}}', "is no list of counts"),
        ('{"tokens": {"0": [1.5]}}', "is no list of counts"),
        ('{"tokens": {"0": [true]}}', "is no list of counts"),
        ('{"tokens": {"0": [-1]}}', "is no list of counts"),
        ('{"tokens": {"0": 7}}', "is no list of counts"),
        ("[1", "is not JSON"),
    ],
)
def test_other_files_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "load.json").write_text(text)
    with pytest.raises(FormatError, match=re.escape(reason)):
        read_expert_load(tmp_path / "load.json")


def test_a_file_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_expert_load(tmp_path / "load.json")
