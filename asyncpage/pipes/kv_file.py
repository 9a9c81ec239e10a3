"""A file that holds one KV block: what it is, whose it is, and its bytes.

`kv_folder.py` keeps a folder of them. Little-endian: a fixed header, the block's token ids, its payload. The header
ends with two checksums (CRC-32, 2 GB/s here where SHA-256 is at 1.0): of the payload, and of all that comes before
the payload. They find damage; against people who write here the folder's mode stands.

INVARIANT: a payload is only ever taken for a block's when fingerprint, label, length and both checksums agree.
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from asyncpage.errors import FormatError
from asyncpage.messages import BlockLabel

SUFFIX = ".kv"
PART_SUFFIX = ".part"

_MAGIC = b"asyncpkv"
_VERSION = 1
# magic, version, group, fingerprint, name, parent, proof, bytes of tokens, bytes of payload, checksum of the payload
_FIELDS = struct.Struct("<8sII32s32s32s32sIQI")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_MOST_TOKEN_BYTES = 1 << 16  # a block of 16,384 tokens


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. `payload_at`: where the payload begins."""

    model: bytes
    label: BlockLabel
    payload_at: int
    payload_bytes: int
    payload_checksum: int


def model_id(fingerprint: str) -> bytes:
    """What stands in a file for the executor's fingerprint (weights, arithmetic, KV layout): 32 bytes."""
    return sha256(fingerprint.encode()).digest()


def file_name(model: bytes, key: bytes) -> str:
    """Where a block lies in a folder, by `BlockLabel.key`; models that share the folder do not meet."""
    return f"{model[:8].hex()}-{key.hex()}{SUFFIX}"


def file_bytes(label: BlockLabel, payload_bytes: int) -> int:
    """How long the file of such a block is."""
    return _HEADER_BYTES + len(label.tokens) + payload_bytes


def write_block(path: Path, model: bytes, label: BlockLabel, payload: memoryview) -> None:
    """Write a file of mode 0600 under a temporary name, then give it its own.

    Errors: `OSError`; then nothing new is left there.
    """
    fields = _FIELDS.pack(
        _MAGIC, _VERSION, label.group, model, label.name, label.parent, label.proof,
        len(label.tokens), len(payload), crc32(payload),
    )  # fmt: skip
    head = fields + _CHECKSUM.pack(crc32(label.tokens, crc32(fields))) + label.tokens
    part = path.with_name(f".{path.name}.{os.getpid()}{PART_SUFFIX}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(head))
            _write_all(file.fileno(), payload)
        os.rename(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def read_header(path: Path) -> Header:
    """What a file is, its payload unread. Errors: `FormatError` when it is damaged, `OSError`."""
    descriptor = _open(path)
    try:
        return _header(path, descriptor)
    finally:
        os.close(descriptor)


def read_block(path: Path, model: bytes, label: BlockLabel, into: memoryview) -> None:
    """Read the payload of the block that `label` names; a failed reading may leave anything in `into`.

    Errors: `FormatError` when the file is damaged or another block's, `OSError` when it cannot be read.
    """
    descriptor = _open(path)
    try:
        header = _header(path, descriptor)
        if header.model != model or header.label != label:
            raise FormatError(str(path), "header", "is of another model or block")
        if header.payload_bytes != len(into):
            raise FormatError(str(path), "payload", f"has {header.payload_bytes} bytes, a block has {len(into)}")
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done:]], header.payload_at + done)
            if count == 0:
                raise FormatError(str(path), "payload", f"ends after {done} of {len(into)} bytes")
            done += count
        if crc32(into) != header.payload_checksum:
            raise FormatError(str(path), "payload", "does not have its checksum")
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    # Without O_NONBLOCK a FIFO in the folder would hang the open for ever.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _header(path: Path, descriptor: int) -> Header:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(str(path), "file", "is not a regular file")
    head = os.pread(descriptor, _HEADER_BYTES, 0)
    if len(head) < _HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
        raise FormatError(str(path), "header", "is not that of a KV block")
    fields = _FIELDS.unpack_from(head)
    _, version, group, model, name, parent, proof, token_bytes, payload_bytes, checksum = fields
    if version != _VERSION:
        raise FormatError(str(path), "header", f"is of version {version}, this version reads {_VERSION}")
    if token_bytes > _MOST_TOKEN_BYTES or group > 255:
        raise FormatError(str(path), "header", f"tells of {token_bytes} bytes of tokens in group {group}")
    tokens = os.pread(descriptor, token_bytes, _HEADER_BYTES)
    if _CHECKSUM.unpack_from(head, _FIELDS.size)[0] != crc32(tokens, crc32(head[: _FIELDS.size])):
        raise FormatError(str(path), "header", "does not have its checksum")
    payload_at = _HEADER_BYTES + token_bytes
    if status.st_size != payload_at + payload_bytes:
        raise FormatError(str(path), "file", f"has {status.st_size} bytes, not {payload_at + payload_bytes}")
    return Header(model, BlockLabel(name, group, parent, tokens, proof), payload_at, payload_bytes, checksum)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
