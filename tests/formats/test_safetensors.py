"""Safetensors written by the `safetensors` package are read as written; malformed ones are refused by name."""

from __future__ import annotations

import json
import struct
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.safetensors import SafetensorsFile

ARRAYS: dict[str, np.ndarray] = {
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "bytes": np.arange(5, dtype=np.uint8),
    "scalar": np.array(2.5, dtype=np.float64),
    "flags": np.array([True, False]),
    "counts": np.arange(3, dtype=np.int64),
    "nothing": np.zeros((0, 4), dtype=np.float32),
}


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def framed(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """A file whose header is `header`, bytes or a value to write as JSON."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if size is None else size) + encoded + data


def test_tensors_are_read_as_the_package_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(save(ARRAYS, metadata={"format": "pt"}))
    file = SafetensorsFile(path)
    assert file.metadata == {"format": "pt"}
    assert {name: info.shape for name, info in file.tensors.items()} == {n: a.shape for n, a in ARRAYS.items()}
    assert {name: bytes(file.raw(name)) for name in file.tensors} == {n: a.tobytes() for n, a in ARRAYS.items()}
    assert file.tensors["half"].dtype == "F16"
    assert len(file.header()) + len(file.data()) == path.stat().st_size
    file.release("matrix")
    file.close()


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(save({}))
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert dict(file.tensors) == {}
    assert len(file.data()) == 0


EIGHT = bytes(8)
MALFORMED: dict[str, tuple[bytes, str, str]] = {  # case: file, where, part of the reason
    "empty file": (b"", "file", "is empty"),
    "seven bytes": (bytes(7), "header size", "has 7 bytes"),
    "absurd header size": (framed({}, size=2**64 - 1), "header size", "at most"),
    "header longer than the file": (framed({}, size=100), "header", "ends at byte 108, the file has 10"),
    "empty header": (framed(b""), "header", "not with a brace"),
    "header that is a list": (framed([1]), "header", "not with a brace"),
    "header cut short": (framed(b'{"a": '), "header", "is not JSON"),
    "header that is not text": (framed(b'{"\xff": 1}'), "header", "not valid UTF-8"),
    "header nested too deep": (framed(b'{"a":' + b"[" * 50_000), "header", "nested too deeply"),
    "header of countless lists": (framed(b'{"a":[' + b"[]," * 200_000 + b"[]]}"), "header", "objects and lists"),
    "a number of many digits": (framed(b'{"a":' + b"9" * 100_000 + b"}"), "header", "not usable JSON"),
    "name twice": (framed(b'{"a":1,"a":2}'), "header", "the key 'a' is there twice"),
    "metadata that is no object": (framed({"__metadata__": 3}), "__metadata__", "not an object of strings"),
    "metadata that is no text": (framed({"__metadata__": {"a": 1}}), "__metadata__", "not an object of strings"),
    "entry that is no object": (framed({"a": 3}), "tensor 'a'", "dtype, shape and data_offsets"),
    "entry without a shape": (framed({"a": {"dtype": "F32"}}), "tensor 'a'", "dtype, shape and data_offsets"),
    "entry with more": (framed({"a": entry() | {"x": 1}}, EIGHT), "tensor 'a'", "dtype, shape and data_offsets"),
    "unknown dtype": (framed({"a": entry("F4")}, EIGHT), "tensor 'a'", "has dtype 'F4', which is not supported"),
    "dtype that is no text": (framed({"a": entry([1])}, EIGHT), "tensor 'a'", "has dtype that is not a text"),
    "shape that is no list": (framed({"a": entry(shape=2)}, EIGHT), "tensor 'a'", "has a shape"),
    "negative axis": (framed({"a": entry(shape=[-2])}, EIGHT), "tensor 'a'", "has a shape"),
    "fractional axis": (framed({"a": entry(shape=[2.0])}, EIGHT), "tensor 'a'", "has a shape"),
    "boolean axis": (framed({"a": entry(shape=[True, 2])}, EIGHT), "tensor 'a'", "has a shape"),
    "nine axes": (framed({"a": entry(shape=[1] * 8 + [2])}, EIGHT), "tensor 'a'", "has a shape"),
    "axes beyond 64 bits": (framed({"a": entry(shape=[2**64])}, EIGHT), "tensor 'a'", "has a shape"),
    "one offset": (framed({"a": entry(offsets=[8])}, EIGHT), "tensor 'a'", "a begin and an end"),
    "offsets in reverse": (framed({"a": entry(offsets=[8, 0])}, EIGHT), "tensor 'a'", "a begin and an end"),
    "negative offset": (framed({"a": entry(offsets=[-8, 0])}, EIGHT), "tensor 'a'", "a begin and an end"),
    "size that is not the shape's": (framed({"a": entry(shape=[3])}, EIGHT), "tensor 'a'", "has 8 bytes, F32"),
    "size that overflows 64 bits": (
        framed({"a": entry(shape=[2**62, 2**62, 16])}, EIGHT), "tensor 'a'", "has 8 bytes, F32",
    ),
    "data cut short": (framed({"a": entry()}, bytes(7)), "tensor 'a'", "may be cut short"),
    "overlapping data": (
        framed({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "tensor 'b'", "overlaps that of 'a'",
    ),
    "a hole in the data": (
        framed({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "tensor data", "20 bytes, the tensors name 16",
    ),
    "data that nobody names": (framed({"a": entry()}, bytes(9)), "tensor data", "has 9 bytes, the tensors name 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_name_in_little_memory(case: str, tmp_path: Path) -> None:
    data, where, reason = MALFORMED[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        SafetensorsFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (caught.value.file, caught.value.where) == (str(path), where)
    assert reason in caught.value.reason
    assert peak < 1_000_000


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        SafetensorsFile(tmp_path / "m.safetensors")


SAMPLE = save(ARRAYS, metadata={"format": "pt"})
HEADER_END = 8 + int.from_bytes(SAMPLE[:8], "little")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.safetensors"


@settings(max_examples=250, deadline=timedelta(seconds=2))
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, HEADER_END - 1),
            st.integers(0, 3),
            st.one_of(st.binary(max_size=8), st.sampled_from([b"[", b'"', b"}", b"9", b"-1", b"null", b"{}", b","])),
        ),
        min_size=1,
        max_size=5,
    ),
    keep_size=st.booleans(),
    cut=st.integers(0, 4 * len(SAMPLE)),
)
def test_a_mutated_file_is_read_or_refused_but_never_worse(
    target: Path, changes: list[tuple[int, int, bytes]], keep_size: bool, cut: int
) -> None:
    header = bytearray(SAMPLE[:HEADER_END])
    for position, removed, patch in changes:
        at = position % len(header)
        header[at : at + removed] = patch
    if not keep_size:  # a header size that fits lets the mutation reach the JSON
        header[:8] = struct.pack("<Q", max(0, len(header) - 8))
    data = (bytes(header) + SAMPLE[HEADER_END:])[:cut]
    target.write_bytes(data)
    refusal = None
    try:
        file = SafetensorsFile(target)
        for name, info in file.tensors.items():
            assert len(file.raw(name)) == info.size
            assert info.offset + info.size <= len(data)
    except FormatError as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith(f"{target}: ") and "\n" not in refusal)
