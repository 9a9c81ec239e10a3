"""The GGUF writer against the gguf package, which reads what it wrote, and against our own reader."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from asyncpage.formats.gguf import GGUFFile
from asyncpage.formats.gguf_writer import Outline, write_gguf

METADATA = {
    "general.architecture": "llama",
    "general.name": "Größe ÷ 2",
    "a.count": 4_000_000_000,
    "a.share": 0.375,
    "a.flag": True,
    "a.words": ["", "one", "zwei"],
    "a.numbers": [-1, 2, 3],
    "a.scores": [-0.5, 0.25],
}


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_another_library_reads_what_was_written(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((5, 64), dtype=np.float32)
    data = quantize(values, GGMLQuantizationType[kind])
    other = np.arange(3, dtype="<f4")
    tensors = (
        Outline("odd", "F32", (3,), other.tobytes),
        Outline("matrix", kind, (5, 64), partial(bytes, data.tobytes())),
    )
    told: list[tuple[int, int]] = []
    path = tmp_path / "model.gguf"
    write_gguf(path, METADATA, tensors, lambda *how_far: told.append(how_far))

    reader = GGUFReader(path)
    for key, value in METADATA.items():
        assert reader.fields[key].contents() == value, key
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert found["matrix"].tensor_type == GGMLQuantizationType[kind]
    assert list(found["matrix"].shape) == [64, 5]  # its order is the file's
    assert found["matrix"].data.tobytes() == data.tobytes()
    assert found["odd"].data.tolist() == [0.0, 1.0, 2.0]

    ours = GGUFFile(path)
    assert dict(ours.metadata) == METADATA
    assert ours.tensors["matrix"].shape == (5, 64)
    assert bytes(ours.raw("matrix")) == data.tobytes()
    ours.close()
    assert told[-1][0] == told[-1][1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]


def test_a_tensor_of_another_size_than_its_shapes_is_our_mistake_and_leaves_no_file(tmp_path: Path) -> None:
    wrong = Outline("odd", "F32", (3,), partial(bytes, 8))
    with pytest.raises(AssertionError, match="the bytes that its shape says"):
        write_gguf(tmp_path / "model.gguf", {}, (wrong,), lambda *_: None)
    assert not (tmp_path / "model.gguf").exists()
