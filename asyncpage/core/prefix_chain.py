"""The hash chain: a full block's name says what it holds and everything before it.

The tokenizer names a prompt's blocks once, the KV manager names the blocks that fill while a request runs, and both
look names up here. A name is sha256(parent name, the block's token ids); the parent of a first block is a root made
of tagged, length-prefixed keys (block size, adapter, salt), so a name is the same in every process and after a
restart, and no salt or adapter can be spelled so as to collide with another. SHA-256 costs 1.3 us a block of 16
here, on a digest instruction; a 128-bit non-cryptographic hash would cost 0.5 us and could be forged by a prompt.

INVARIANT: two equal names hold equal tokens after equal prefixes, under the same salt and adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from asyncpage.messages import LayerGroup

NAME_BYTES = 32


def root_name(block_size: int, *, salt: str = "", adapter: str = "") -> bytes:
    """The parent of a first block: what separates tenants, adapters and block sizes."""
    digest = sha256(b"asyncpage/kv/1")
    for tag, value in (("block", str(block_size)), ("adapter", adapter), ("salt", salt)):
        for part in (tag.encode(), value.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(4, "little"))
            digest.update(part)
    return digest.digest()


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
    return extend_chain(root_name(block_size, salt=salt, adapter=adapter), tokens, block_size)


class PrefixChain:
    """Finds blocks by name: one dictionary a layer group, a lookup is a `get` a block."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None:
        self._groups = tuple(groups)
        self._block_size = block_size
        self._blocks: tuple[dict[bytes, int], ...] = tuple({} for _ in groups)
        self._places: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def match(self, names: Sequence[bytes], most: int) -> tuple[tuple[int, ...], ...]:
        """The longest beginning of `names`, at most `most` blocks, that every group still holds.

        Returns one tuple of block ids a group, all of the same length; a window group's blocks behind its window
        are 0, since no token to come looks at them.
        """
        found = min(most, len(names))
        for group, blocks in zip(self._groups, self._blocks, strict=True):
            if group.kind == "full":
                length = 0
                while length < found and names[length] in blocks:
                    length += 1
                found = length
        while found and not all(self._window_held(index, names, found) for index in range(len(self._groups))):
            found -= 1
        return tuple(
            tuple(
                0 if i < self.first_needed(index, found * self._block_size) else blocks[names[i]] for i in range(found)
            )
            for index, blocks in enumerate(self._blocks)
        )

    def publish(self, group: int, name: bytes, block: int) -> bool:
        """Name a block; False when the name is already held by another, which then stays the one."""
        blocks = self._blocks[group]
        if name in blocks:
            return False
        blocks[name] = block
        self._places[block] = (group, name)
        return True

    def holds(self, block: int) -> bool:
        """Whether this block has a name, so that its contents may be shared and must not change."""
        return block in self._places

    def forget(self, block: int) -> None:
        """Take a block's name away, because it is about to hold something else."""
        place = self._places.pop(block, None)
        if place is not None:
            del self._blocks[place[0]][place[1]]

    def clear(self) -> None:
        """Forget every block: the device that held them is gone."""
        self._places.clear()
        for blocks in self._blocks:
            blocks.clear()

    def first_needed(self, group: int, tokens: int) -> int:
        """The first block of a group that the token after `tokens` tokens looks at."""
        spec = self._groups[group]
        if spec.kind == "full":
            return 0
        return max(0, tokens - spec.window + 1) // self._block_size

    def _window_held(self, index: int, names: Sequence[bytes], length: int) -> bool:
        if self._groups[index].kind == "full":
            return True
        blocks = self._blocks[index]
        return all(names[i] in blocks for i in range(self.first_needed(index, length * self._block_size), length))
