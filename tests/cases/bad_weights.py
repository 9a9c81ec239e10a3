"""Malformed safetensors, each wrong in one way, made from a good file; and good ones that look unusual.

INVARIANT: every bad file differs from the good one in its one fault only.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cases.model_folder import Model

Header = dict[str, Any]
FIRST, SECOND = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


class Good:
    """The good file's parts."""

    def __init__(self, model: Model) -> None:
        raw = (model.folder / "model.safetensors").read_bytes()
        self.size = int.from_bytes(raw[:8], "little")
        self.header: Header = json.loads(raw[8 : 8 + self.size])
        self.data = raw[8 + self.size :]
        self.raw = raw

    def joined(self, header: bytes | Header, data: bytes | None = None, length: int | None = None) -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        size = len(text) if length is None else length
        return struct.pack("<Q", size) + text + (self.data if data is None else data)

    def changed(self, tensor: str, **fields: Any) -> bytes:
        return self.joined({**self.header, tensor: {**self.header[tensor], **fields}})


def bad_files(good: Good) -> Iterator[tuple[str, bytes]]:
    """By name, the bytes of one `model.safetensors`."""
    text = json.dumps(good.header).encode()
    for length in (0, 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, len(good.raw) + 1):
        yield f"header length {length}", good.joined(text, length=length)
    yield "header is not JSON", good.joined(b"x" + text[1:])
    yield "header is a list", good.joined(b"[" + text + b"]")
    yield "header is deep", good.joined(b'{"a":' * 5000 + b"1" + b"}" * 5000)
    first = json.dumps({FIRST: good.header[FIRST]}).encode()[1:-1]
    yield "a tensor is there twice", good.joined(text[:-1] + b"," + first + b"}")
    yield "header is not UTF-8", good.joined(text.replace(b"model.norm", b"model.\xff\xfenorm"))
    begin, end = good.header[FIRST]["data_offsets"]
    for name, offsets in (
        ("reversed", [end, begin]), ("negative", [-8, end - begin - 8]), ("floats", [begin + 0.5, end + 0.5]),
        ("one", [begin]), ("three", [begin, end, end]), ("past the end", [begin, len(good.raw) * 2]),
        ("overlapping", [begin + 4, end + 4]), ("text", "0-8"),
    ):  # fmt: skip
        yield f"offsets: {name}", good.changed(FIRST, data_offsets=offsets)
    shifted = {
        name: entry if name == FIRST or entry["data_offsets"][0] < end else
        {**entry, "data_offsets": [place + 8 for place in entry["data_offsets"]]}
        for name, entry in good.header.items()
    }  # fmt: skip
    yield "a hole between tensors", good.joined(shifted, good.data[:end] + b"\0" * 8 + good.data[end:])
    for name, shape in (
        ("product overflows", [1 << 32, 1 << 32]), ("negative", [-64, -64]), ("a million dimensions", [1] * 10**6),
        ("too few", [64, 63]), ("a text", "64x64"), ("a fraction", [64.5, 64]),
    ):  # fmt: skip
        yield f"shape: {name}", good.changed(FIRST, shape=shape)
    for dtype in ("F7", "", "F64", 32, None):
        yield f"dtype {dtype!r}", good.changed(FIRST, dtype=dtype)
    for place in range(20):
        yield f"cut at {place}/20", good.raw[: len(good.raw) * place // 20 + (place % 3)]
    yield "trailing bytes", good.raw + b"\0" * 16
    missing = {name: entry for name, entry in good.header.items() if name != FIRST}
    yield "a tensor is missing and its bytes are not", good.joined(missing)


def good_files(good: Good) -> Iterator[tuple[str, bytes]]:
    """What looks unusual and is right."""
    text = json.dumps(good.header).encode()
    yield "reordered header", good.joined(dict(reversed(good.header.items())))
    yield "padding", good.joined(text + b" " * 64)
    extra = {"empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [len(good.data)] * 2}}
    yield "a tensor of no size and metadata", good.joined({"__metadata__": {"format": "pt"}, **good.header, **extra})


def folder_with(model: Model, folder: Path, weights: bytes | None, more: Callable[[Path], None] | None = None) -> Path:
    """A copy of the model with other weights. `more` changes the folder further."""
    shutil.copytree(model.folder, folder)
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    if more is not None:
        more(folder)
    return folder


def bad_indexes(good: Good) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """By name, what makes a folder with one shard one whose index is wrong."""

    def sharded(change: Callable[[dict[str, str]], str]) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            (folder / "model.safetensors").rename(folder / "shard-1.safetensors")
            text = change(dict.fromkeys(good.header, "shard-1.safetensors"))
            (folder / "model.safetensors.index.json").write_text(text)

        return apply

    def naming(shard: str) -> Callable[[dict[str, str]], str]:
        return lambda names: json.dumps({"weight_map": {**names, FIRST: shard}})

    yield "index names an absent shard", sharded(naming("shard-2.safetensors"))
    yield "index leads outside", sharded(naming("../x.safetensors"))
    yield "index leads to the root", sharded(naming("/etc/passwd"))
    twice = f'"{FIRST}": "shard-1.safetensors", "{FIRST}": "shard-2.safetensors"'
    yield "index puts a tensor in two shards", sharded(lambda names: f'{{"weight_map": {{{twice}}}}}')
    yield (
        "index names a tensor that no shard has",
        sharded(lambda names: json.dumps({"weight_map": {**names, "no.such.tensor": "shard-1.safetensors"}})),
    )
