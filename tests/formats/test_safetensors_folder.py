"""A folder's safetensors are found, joined by their index, and never looked for outside of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.safetensors_folder import SafetensorsFolder

ONE, TWO = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float16)


def index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"one": ONE}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    save_file({"two": TWO}, tmp_path / "b.safetensors")
    index(tmp_path, {"one": "a.safetensors", "two": "b.safetensors"})
    return tmp_path


def test_a_single_file_is_found_under_either_name(tmp_path: Path) -> None:
    save_file({"one": ONE}, tmp_path / "weights.safetensors")
    assert bytes(SafetensorsFolder(tmp_path).raw("one")) == ONE.tobytes()
    save_file({"two": TWO}, tmp_path / "model.safetensors")
    assert list(SafetensorsFolder(tmp_path).tensors) == ["two"]


def test_shards_are_joined_by_their_index(sharded: Path) -> None:
    folder = SafetensorsFolder(sharded)
    assert {name: info.dtype for name, info in folder.tensors.items()} == {"one": "F32", "two": "F16"}
    assert bytes(folder.raw("one")) == ONE.tobytes()
    assert bytes(folder.raw("two")) == TWO.tobytes()
    assert folder.metadata == {"format": "pt"}
    assert sorted(folder.files) == ["a.safetensors", "b.safetensors"]
    folder.release("two")
    folder.close()


def test_shards_may_be_links_as_a_hub_cache_has_them(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for file in sharded.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert bytes(SafetensorsFolder(snapshot).raw("two")) == TWO.tobytes()


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/outside.safetensors",
        "sub/inside.safetensors",
        "..\\outside.safetensors",
        "a.safetensors\0",
        "\ud800.safetensors",
        "x" * 300 + ".safetensors",
        "a.bin",
        ".safetensors",
        "",
        None,
        ["a.safetensors"],
    ],
)
def test_an_index_cannot_point_outside_its_folder(sharded: Path, name: Any) -> None:
    save_file({"one": ONE}, sharded.parent / "outside.safetensors")
    (sharded / "sub").mkdir()
    save_file({"one": ONE}, sharded / "sub" / "inside.safetensors")
    index(sharded, {"one": name})
    with pytest.raises(FormatError, match=r"tensor 'one': is in .*, which is not the plain name"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize("weight_map", [None, [], {}, "a.safetensors"])
def test_an_index_without_a_map_is_refused(sharded: Path, weight_map: Any) -> None:
    index(sharded, weight_map)
    with pytest.raises(FormatError, match="weight_map"):
        SafetensorsFolder(sharded)


def test_an_index_that_is_wrong_about_a_tensor_is_refused(sharded: Path) -> None:
    index(sharded, {"one": "a.safetensors", "three": "b.safetensors"})
    with pytest.raises(FormatError, match=r"tensor 'three': is not in b\.safetensors"):
        SafetensorsFolder(sharded)


def test_a_missing_shard_is_told(sharded: Path) -> None:
    (sharded / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors: no such file"):
        SafetensorsFolder(sharded)


def test_an_index_that_names_countless_files_is_refused(sharded: Path) -> None:
    index(sharded, {str(number): f"{number}.safetensors" for number in range(3000)})
    with pytest.raises(FormatError, match="names 3000 files"):
        SafetensorsFolder(sharded)


def test_an_index_that_is_too_large_is_not_read(sharded: Path) -> None:
    with (sharded / "model.safetensors.index.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FormatError, match=f"has {1 << 30} bytes"):
        SafetensorsFolder(sharded)


def test_a_folder_without_safetensors_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="pickled weights, which are never read"):
        SafetensorsFolder(tmp_path)


def test_several_files_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match="has 2 safetensors files and no"):
        SafetensorsFolder(sharded)
