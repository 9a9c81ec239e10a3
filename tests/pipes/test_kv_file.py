"""Files of KV blocks: the layout byte by byte, and everything that must not be taken for a block."""

import os
import random
import stat
import struct
import zlib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from asyncpage.errors import FormatError
from asyncpage.messages import BlockLabel
from asyncpage.pipes.kv_file import file_bytes, file_name, model_id, read_block, read_header, write_block

MODEL = model_id("fingerprint")
LABEL = BlockLabel(b"n" * 32, 3, b"p" * 32, b"tokens" * 4, b"o" * 32)
PAYLOAD = random.Random(1).randbytes(5000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / file_name(MODEL, LABEL.key)
    write_block(path, MODEL, LABEL, memoryview(PAYLOAD))
    return path


def test_a_block_is_read_as_it_was_written(path: Path) -> None:
    into = bytearray(len(PAYLOAD))
    read_block(path, MODEL, LABEL, memoryview(into))
    assert into == PAYLOAD
    header = read_header(path)
    assert (header.model, header.label, header.payload_bytes) == (MODEL, LABEL, 5000)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_the_file_is_laid_out_as_the_format_says(path: Path) -> None:
    fields = struct.pack(
        "<8sII32s32s32s32sIQI", b"asyncpkv", 1, 3, sha256(b"fingerprint").digest(), b"n" * 32, b"p" * 32, b"o" * 32,
        24, 5000, zlib.crc32(PAYLOAD),
    )  # fmt: skip
    head = fields + struct.pack("<I", zlib.crc32(fields + b"tokens" * 4)) + b"tokens" * 4
    assert path.read_bytes() == head + PAYLOAD
    assert file_bytes(LABEL, 5000) == path.stat().st_size
    assert path.name == sha256(b"fingerprint").hexdigest()[:16] + "-" + "6e" * 32 + "03.kv"


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    whole = path.read_bytes()
    into = memoryview(bytearray(len(PAYLOAD)))
    chance = random.Random(2)
    header_bytes = len(whole) - len(PAYLOAD)
    for at in (*range(header_bytes), *chance.sample(range(header_bytes, len(whole)), 200)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(FormatError, match=path.name):
            read_block(path, MODEL, LABEL, into)
        if at < header_bytes:
            with pytest.raises(FormatError):
                read_header(path)
    path.write_bytes(whole)
    read_block(path, MODEL, LABEL, into)


def test_a_file_cut_or_extended_anywhere_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for length in (*range(300), *range(300, len(whole), 97)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            read_header(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(FormatError, match="bytes, not"):
        read_header(path)


def test_another_models_or_blocks_file_is_not_taken(path: Path) -> None:
    into = memoryview(bytearray(len(PAYLOAD)))
    with pytest.raises(FormatError, match="another model"):
        read_block(path, model_id("other"), LABEL, into)
    # A name that collides: everything else of the label must agree too.
    for other in (
        replace(LABEL, parent=b"q" * 32),
        replace(LABEL, tokens=b"TOKENS" * 4),
        replace(LABEL, proof=b"r" * 32),
        replace(LABEL, group=2),
    ):
        with pytest.raises(FormatError, match="another model or block"):
            read_block(path, MODEL, other, into)
    with pytest.raises(FormatError, match="a block has 4999"):
        read_block(path, MODEL, LABEL, into[:-1])
    assert not any(into)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "device"])
def test_what_is_no_regular_file_is_not_opened_for_ever(path: Path, kind: str) -> None:
    other = path.with_name("other.kv")
    match kind:
        case "folder":
            other.mkdir()
        case "fifo":
            os.mkfifo(other)
        case "link":
            other.symlink_to(path)
        case "device":
            other = Path("/dev/zero")
    with pytest.raises((FormatError, OSError)):
        read_header(other)


def test_a_failed_writing_leaves_what_was_there(path: Path) -> None:
    before = path.read_bytes()
    folder = path.with_name("a.kv")
    folder.mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        write_block(folder, MODEL, LABEL, memoryview(PAYLOAD))
    assert sorted(os.listdir(path.parent)) == sorted([path.name, "a.kv"])
    assert path.read_bytes() == before


def test_a_link_under_the_temporary_name_is_not_followed(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_text("mine")
    path.with_name(f".{path.name}.{os.getpid()}.part").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_block(path, MODEL, LABEL, memoryview(PAYLOAD))
    assert victim.read_text() == "mine"
