"""Names of full blocks: a hash chain, so that a name says what a block holds and everything before it.

The tokenizer names a prompt's blocks once, off the scheduler's path; the KV manager names the blocks that fill while a
request runs, after it has answered. A name is sha256(parent name, the block's token ids); the parent of a first block
is the digest of a root key made of tagged, length-prefixed parts (block size, adapter, salt), so no salt or adapter
can be spelled so as to collide with another. What later blocks bring beside tokens (media) goes behind the token ids,
tagged the same way: those have a fixed length.

SHA-256 costs 1.3 us a block of 16 with the digest instruction. What lost: xxh3-128 at 0.47 us can be forged by a
prompt; Python's own hash of (parent, tokens) at 0.71 us is another one in every process.

INVARIANT: two equal names hold equal tokens after equal prefixes, under the same root key, in every process.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

NAME_BYTES = 32
_MAGIC = b"asyncpage/kv/2"


@lru_cache(maxsize=1024)
def root_key(block_size: int, *, salt: str = "", adapter: str = "") -> bytes:
    """What separates tenants (`salt`), adapters and block sizes. `adapter`: the identity of one load of it."""
    key = bytearray(_MAGIC)
    for tag, value in (("block", str(block_size)), ("adapter", adapter), ("salt", salt)):
        for part in (tag.encode(), value.encode("utf-8", "surrogatepass")):
            key += len(part).to_bytes(4, "little")
            key += part
    return bytes(key)


def root_parts(key: bytes) -> dict[str, str]:
    """What `root_key` was given: "block", "adapter" and "salt"."""
    parts = []
    at = len(_MAGIC)
    while at < len(key):
        begin = at + 4
        at = begin + int.from_bytes(key[at:begin], "little")
        parts.append(key[begin:at].decode("utf-8", "surrogatepass"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def root_name(key: bytes) -> bytes:
    """The parent name of a first block."""
    return sha256(key).digest()


def extend_chain(parent: bytes, tokens: bytes, block_size: int) -> tuple[bytes, ...]:
    """Names of the full blocks in `tokens` (int32 little-endian), the first of which follows `parent`."""
    width = 4 * block_size
    names = []
    for start in range(0, len(tokens) - width + 1, width):
        parent = sha256(parent + tokens[start : start + width]).digest()
        names.append(parent)
    return tuple(names)


def chain_names(tokens: bytes, block_size: int, *, salt: str = "", adapter: str = "") -> tuple[bytes, ...]:
    """Names of every full block of a prompt given as int32 little-endian, one of 32 bytes each."""
    return extend_chain(root_name(root_key(block_size, salt=salt, adapter=adapter)), tokens, block_size)
