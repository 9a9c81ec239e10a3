"""A fingerprint is the same for the same bytes, and another for others."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from asyncpage.formats.safetensors import SafetensorsFile
from asyncpage.weights.fingerprint import fingerprint


def written(path: Path, values: np.ndarray, name: str = "t") -> SafetensorsFile:
    save_file({name: values}, path)
    return SafetensorsFile(path)


def test_it_does_not_depend_on_the_place(tmp_path: Path) -> None:
    first = written(tmp_path / "a.safetensors", np.arange(1000))
    shutil.copy(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert fingerprint(b"x", [first]) == fingerprint(b"x", [SafetensorsFile(tmp_path / "b.safetensors")])


def test_it_differs_with_header_settings_length_and_order(tmp_path: Path) -> None:
    values = np.zeros(1000)
    file = written(tmp_path / "a.safetensors", values)
    other_name = written(tmp_path / "b.safetensors", values, "u")
    longer = written(tmp_path / "c.safetensors", np.zeros(1001))
    prints = [
        fingerprint(b"", [file]),
        fingerprint(b"x", [file]),
        fingerprint(b"", [other_name]),
        fingerprint(b"", [longer]),
        fingerprint(b"", [file, longer]),
        fingerprint(b"", [longer, file]),
    ]
    assert len(set(prints)) == len(prints)


def test_a_small_file_is_covered_whole_and_the_ends_of_a_large_one(tmp_path: Path) -> None:
    for size, places in ((100, range(100)), (2_000_000, (0, 1_999_999))):
        prints = set()
        for place in places:
            values = np.zeros(size, np.uint8)
            values[place] = 1
            prints.add(fingerprint(b"", [written(tmp_path / "a.safetensors", values)]))
        assert len(prints) == len(places)


def test_a_file_without_data_has_one(tmp_path: Path) -> None:
    save_file({}, tmp_path / "a.safetensors")
    assert len(fingerprint(b"", [SafetensorsFile(tmp_path / "a.safetensors")])) == 64
