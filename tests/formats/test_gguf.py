"""GGUF files written by the `gguf` package are read as written; malformed ones are refused by name."""

from __future__ import annotations

import itertools
import os
import struct
import tracemalloc
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFValueType, GGUFWriter, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile

PATTERN = np.arange(96, dtype=np.float32).reshape(3, 32)


def write(path: Path, endian: GGUFEndian = GGUFEndian.LITTLE, alignment: int | None = None) -> Path:
    """A small file with every kind of value, by the package's own writer."""
    writer = GGUFWriter(path, "llama", endianess=endian)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for kind, value in SCALARS.items():
        writer.add_key_value(f"test.{kind.name.lower()}", value, kind)
    writer.add_bool("test.flag", True)
    writer.add_array("test.words", WORDS)
    writer.add_array("test.integers", [3, -1, 2])
    writer.add_array("test.floats", [0.5, -1.25])
    writer.add_array("test.flags", [True, False])
    writer.add_tensor("pattern", PATTERN)
    writer.add_tensor("half", PATTERN.astype(np.float16))
    writer.add_tensor("line", np.array([1.5, -2.5, 3.5], np.float32))
    data = quants.quantize(PATTERN, GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", data, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SCALARS = {
    GGUFValueType.UINT8: 200, GGUFValueType.INT8: -100, GGUFValueType.UINT16: 60000, GGUFValueType.INT16: -30000,
    GGUFValueType.UINT32: 4_000_000_000, GGUFValueType.INT32: -2_000_000_000, GGUFValueType.UINT64: 2**63 + 1,
    GGUFValueType.INT64: -(2**62), GGUFValueType.FLOAT32: 0.25, GGUFValueType.FLOAT64: 0.1,
    GGUFValueType.STRING: "schöne Grüße 🐢",
}  # fmt: skip
WORDS = ["", "a", "Ġthe", "日本語", "x" * 1000]


# A writer of single fields, for files that the package's writer would not write.
def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: bytes = b"t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    padding: bool = True,
) -> bytes:
    pairs, tensors = pairs or [], tensors or []
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return header + (bytes(-len(header) % 32) if padding else b"") + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def opened(path: Path, data: bytes) -> GGUFFile:
    path.write_bytes(data)
    return GGUFFile(path)


def test_metadata_is_read_as_the_package_wrote_it(path: Path) -> None:
    metadata = GGUFFile(write(path)).metadata
    assert {key: metadata[f"test.{key.name.lower()}"] for key in SCALARS} == SCALARS
    assert metadata["test.flag"] is True
    assert metadata["test.words"] == WORDS
    assert metadata["test.integers"] == [3, -1, 2]
    assert metadata["test.floats"] == [0.5, -1.25]
    assert metadata["test.flags"] == [True, False]
    assert metadata["general.architecture"] == "llama"
    assert "test.nothing" not in metadata
    assert len(list(metadata)) == len(metadata) == len(SCALARS) + 6


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_are_read_as_the_package_wrote_them(path: Path, alignment: int | None) -> None:
    file = GGUFFile(write(path, alignment=alignment))
    assert {name: (info.dtype, info.shape) for name, info in file.tensors.items()} == {
        "pattern": ("F32", (3, 32)), "half": ("F16", (3, 32)), "line": ("F32", (3,)), "packed": ("Q8_0", (3, 32)),
    }  # fmt: skip
    assert np.array_equal(file.dequantize("pattern"), PATTERN)
    assert np.array_equal(file.dequantize("half"), PATTERN)
    assert np.array_equal(file.dequantize("line"), [1.5, -2.5, 3.5])
    assert bytes(file.raw("packed")) == quants.quantize(PATTERN, GGMLQuantizationType.Q8_0).tobytes()


def test_rows_can_be_read_one_part_at_a_time(path: Path) -> None:
    file = GGUFFile(write(path))
    assert np.array_equal(file.rows("pattern", 1, 3), PATTERN[1:3])
    assert file.rows("packed", 2, 2).shape == (0, 32)
    assert np.array_equal(file.rows("line", 0, 1), [[1.5, -2.5, 3.5]])
    out = np.empty((3, 32), np.float32)
    assert file.dequantize("pattern", out=out) is out
    assert np.array_equal(out, PATTERN)
    with pytest.raises(IndexError, match="rows 2 to 4 of 'pattern', which has 3"):
        file.rows("pattern", 2, 4)
    with pytest.raises(ValueError, match="float32"):
        file.dequantize("pattern", out=np.empty((3, 32)))
    with pytest.raises(KeyError):
        file.raw("nothing")


def test_views_outlive_the_close(path: Path) -> None:
    file = GGUFFile(write(path))
    line = file.raw("line")
    file.release("line")
    file.close()
    assert np.array_equal(line.view(np.float32), [1.5, -2.5, 3.5])


def test_version_2_is_read(path: Path) -> None:
    write(path)
    data = bytearray(path.read_bytes())
    data[4] = 2  # the layouts of 2 and 3 differ only in what 3 says of byte order
    assert GGUFFile(path).metadata["test.words"] == opened(path, bytes(data)).metadata["test.words"]


def test_a_vocabulary_without_tensors_is_read(path: Path) -> None:
    file = opened(path, gguf([pair(b"a", 4, struct.pack("<I", 7))], padding=False))
    assert dict(file.metadata) == {"a": 7}
    assert len(file.tensors) == 0
    assert len(file.header()) == path.stat().st_size
    assert len(file.data()) == 0


def test_arrays_of_arrays_are_read(path: Path) -> None:
    inner = array(8, 2, text(b"x") + text(b"yz")) + array(5, 1, struct.pack("<i", -4)) + array(9, 0)
    assert opened(path, gguf([pair(b"k", 9, array(9, 3, inner))])).metadata["k"] == [["x", "yz"], [-4], []]


def test_opening_the_demo_model_decodes_no_vocabulary(demo_model: Path) -> None:
    GGUFFile(demo_model).close()
    tracemalloc.start()
    file = GGUFFile(demo_model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The file's own 98,052 strings would take five megabytes.
    assert peak < 1_000_000
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert file.metadata["tokenizer.ggml.tokens"][1] == "<|im_start|>"
    assert len(file.metadata["tokenizer.ggml.merges"]) == 48900
    assert file.metadata["tokenizer.ggml.merges"][0] == "Ġ t"
    assert len(file.tensors) == 272
    file.close()


HUGE = 2**64 - 1
DATA = bytes(4096)
MALFORMED: dict[str, tuple[bytes, str, str]] = {  # case: file, where, part of the reason
    "empty file": (b"", "file", "is empty"),
    "three bytes": (b"GGU", "magic", "past the end"),
    "other magic": (gguf(magic=b"GGML"), "magic", "found b'GGML'"),
    "version 1": (gguf(version=1), "version", "found 1, versions 2 and 3 are read"),
    "version 4": (gguf(version=4), "version", "found 4"),
    "header cut short": (gguf(padding=False)[:20], "metadata count", "past the end"),
    "absurd number of tensors": (gguf(tensor_count=HUGE), "tensor count", "at most"),
    "more tensors than bytes": (gguf(tensor_count=30_000), "tensor count", "more than the header has room for"),
    "absurd number of pairs": (gguf(pair_count=HUGE), "metadata count", "at most"),
    "more pairs than bytes": (gguf(pair_count=60_000), "metadata count", "more than the header has room for"),
    "key longer than allowed": (gguf([text(b"k" * 65536)]), "metadata key 0", "string of 65536 bytes"),
    "key longer than the file": (gguf([struct.pack("<Q", 60000) + bytes(16)]), "metadata key 0", "past the end"),
    "empty key": (gguf([pair(b"", 4, bytes(4))]), "metadata key 0", "is empty"),
    "key that is not text": (gguf([pair(b"\xff", 4, bytes(4))]), "metadata key 0", "not valid UTF-8"),
    "key twice": (gguf([pair(b"k", 0, b"1"), pair(b"k", 0, b"2")]), "metadata 'k'", "is there twice"),
    "value of unknown type": (gguf([pair(b"k", 13, bytes(8))]), "metadata 'k'", "unknown type 13"),
    "boolean of 2": (gguf([pair(b"k", 7, b"\x02")]), "metadata 'k'", "boolean of byte 2"),
    "array with a boolean of 2": (gguf([pair(b"k", 9, array(7, 2, b"\x01\x02"))]), "metadata 'k'", "boolean"),
    "absurd string": (gguf([pair(b"k", 8, struct.pack("<Q", HUGE))]), "metadata 'k'", f"string of {HUGE} bytes"),
    "string that is not text": (gguf([pair(b"k", 8, text(b"\xc3("))]), "metadata 'k'", "not valid UTF-8"),
    "array of unknown type": (gguf([pair(b"k", 9, array(99, 1))]), "metadata 'k'", "array of unknown type 99"),
    "absurd array of numbers": (gguf([pair(b"k", 9, array(4, 2**62))]), "metadata 'k'", "room for"),
    "absurd array of strings": (gguf([pair(b"k", 9, array(8, 2**40))]), "metadata 'k'", "room for"),
    "array longer than the file": (gguf([pair(b"k", 9, array(4, 90))]), "metadata 'k'", "room for"),
    "last string past the end": (
        gguf([pair(b"k", 9, array(8, 1, struct.pack("<Q", 4000)))]), "metadata 'k'", "past the end",
    ),
    "inner string of absurd length": (
        gguf([pair(b"k", 9, array(8, 2, struct.pack("<QQ", HUGE, 0)))]), "metadata 'k'", "past the end",
    ),
    "arrays nested too deep": (gguf([pair(b"k", 9, array(9, 1) * 4 + array(4, 0))]), "metadata 'k'", "nested deeper"),
    "countless inner arrays": (
        gguf([pair(b"k", 9, array(9, 65537, array(4, 0) * 65537))]), "metadata 'k'", "inner arrays",
    ),
    "alignment that is text": (gguf([pair(b"general.alignment", 8, text(b"32"))]), "general.alignment", "integer"),
    "alignment of 0": (gguf([pair(b"general.alignment", 4, bytes(4))]), "general.alignment", "power of two"),
    "alignment of 24": (gguf([pair(b"general.alignment", 4, b"\x18\0\0\0")]), "general.alignment", "power of two"),
    "absurd alignment": (gguf([pair(b"general.alignment", 4, b"\0\0\0\x80")]), "general.alignment", "power of two"),
    "tensor name too long": (gguf(None, [tensor(b"n" * 65)], DATA), "tensor name", "string of 65 bytes"),
    "no dimensions": (gguf(None, [tensor(dims=())], DATA), "tensor 't'", "has 0 dimensions"),
    "five dimensions": (gguf(None, [tensor(dims=(1,) * 5)], DATA), "tensor 't'", "has 5 dimensions"),
    "absurd number of dimensions": (
        gguf(None, [text(b"t") + struct.pack("<I", 2**32 - 1) + bytes(64)], DATA), "tensor 't'", "dimensions",
    ),
    "axis of 0": (gguf(None, [tensor(dims=(4, 0))], DATA), "tensor 't'", "an axis of 0"),
    "size that overflows 64 bits": (
        gguf(None, [tensor(dims=(2**32, 2**32, 4))], DATA), "tensor 't'", "ends at byte",
    ),
    "type not supported": (gguf(None, [tensor(dims=(256,), kind=18)], DATA), "tensor 't'", "IQ3_XXS"),
    "type removed from the format": (gguf(None, [tensor(kind=4)], DATA), "tensor 't'", "has type number 4"),
    "type that never was": (gguf(None, [tensor(kind=12345)], DATA), "tensor 't'", "has type number 12345"),
    "row that is no whole block": (gguf(None, [tensor(dims=(33, 32), kind=2)], DATA), "tensor 't'", "rows of 33"),
    "offset not aligned": (gguf(None, [tensor(offset=4)], DATA), "tensor 't'", "not aligned to 32"),
    "offset past the end": (gguf(None, [tensor(offset=2**63)], DATA), "tensor 't'", "ends at byte"),
    "data cut short": (gguf(None, [tensor(dims=(32, 33))], DATA), "tensor 't'", "it may be cut short"),
    "name twice": (
        gguf(None, [tensor(), tensor(offset=32)], DATA), "tensor 't'", "is there twice",
    ),
    "overlapping data": (
        gguf(None, [tensor(b"a", (16,)), tensor(b"b", (16,), offset=32)], DATA), "tensor 'b'", "overlaps that of 'a'",
    ),
    "same data": (gguf(None, [tensor(b"a"), tensor(b"b")], DATA), "tensor 'b'", "overlaps that of 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_name_in_little_memory(case: str, path: Path) -> None:
    data, where, reason = MALFORMED[case]
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        GGUFFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (caught.value.file, caught.value.where) == (str(path), where)
    assert reason in caught.value.reason
    assert peak < 1_000_000


def test_a_big_endian_file_is_refused_by_name(path: Path) -> None:
    with pytest.raises(FormatError, match="is a big-endian file"):
        GGUFFile(write(path, GGUFEndian.BIG))


def test_strings_of_an_array_that_are_not_text_are_refused_when_asked_for(path: Path) -> None:
    file = opened(path, gguf([pair(b"k", 9, array(8, 2, text(b"ok") + text(b"\xff")))]))
    with pytest.raises(FormatError, match="metadata 'k': is not valid UTF-8"):
        file.metadata["k"]


def test_a_header_without_end_is_refused_before_it_is_walked(path: Path) -> None:
    # Sparse: a hundred megabytes of zeros are twelve million empty strings.
    for count, reason in ((12_000_000, "more than the header has room for"), (5_000_000, "more than 2097152")):
        with path.open("wb") as file:
            file.write(gguf([pair(b"k", 9, array(8, count))]))
            file.truncate(100_000_000)
        with pytest.raises(FormatError, match=f"metadata 'k': .*{reason}"):
            GGUFFile(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        GGUFFile(tmp_path / "nothing.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        GGUFFile(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        GGUFFile(tmp_path / "pipe.gguf")


edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete"]),
        st.integers(0, 1 << 16),
        st.one_of(
            st.binary(min_size=1, max_size=12),
            st.sampled_from([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 2**63), struct.pack("<I", 9)]),
        ),
    ),
    min_size=1,
    max_size=6,
)


def mutated(data: bytes, changes: list[tuple[str, int, bytes]], span: int) -> bytes:
    """`data` with some bytes of its first `span` replaced, inserted or deleted."""
    out = bytearray(data)
    for kind, position, patch in changes:
        at = position % max(1, min(span, len(out)))
        if kind == "set":
            out[at : at + len(patch)] = patch
        elif kind == "insert":
            out[at:at] = patch
        else:
            del out[at : at + len(patch)]
    return bytes(out)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("fuzz") / "sample.gguf")


@settings(max_examples=250, deadline=timedelta(seconds=2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=edits, cut=st.integers(0, 1 << 16))
def test_a_mutated_file_is_read_or_refused_but_never_worse(
    sample: Path, changes: list[tuple[str, int, bytes]], cut: int
) -> None:
    original = sample.read_bytes()
    data = mutated(original, changes, span=GGUFFile(sample).data_offset)
    if cut < len(original):  # most examples are not cut
        data = data[:cut]
    target = sample.with_name("mutated.gguf")
    target.write_bytes(data)
    refusal = None
    try:
        check_whole(GGUFFile(target), len(data))
    except FormatError as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith(f"{target}: ") and "\n" not in refusal)


def check_whole(file: GGUFFile, size: int) -> None:
    """Whatever opens has values of the promised types, and tensors inside the file that do not overlap."""
    assert all(isinstance(value, str | int | float | list) for value in file.metadata.values())
    spans = sorted((info.offset, info.offset + info.size) for info in file.tensors.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for name, info in file.tensors.items():
        assert info.offset + info.size <= size
        assert file.dequantize(name).shape == info.shape
