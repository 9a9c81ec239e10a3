"""What the archive of KV blocks is sent, and the label that a block outside the device carries."""

from __future__ import annotations

from asyncpage.records import record

NO_PARENT = bytes(32)


@record(frozen=True, slots=True)
class BlockLabel:
    """What a block holds, wherever its bytes are.

    `name`, `parent`: of the hash chain, 32 bytes each; the parent of a first block is zeros. `group`: of layers.
    `tokens`: int32 little-endian, a full block. `proof`: 32 bytes, a second digest of everything up to the block's
    end, made by another function, so that no collision of names can serve another prompt's KV.
    """

    name: bytes
    group: int
    parent: bytes
    tokens: bytes
    proof: bytes

    @property
    def key(self) -> bytes:
        """Name and group in one: what a block outside the device is found by."""
        return self.name + self.group.to_bytes(1, "little")


@record(frozen=True, slots=True)
class Store:
    """Write a host slot to a file. The slot keeps its contents until `Stored`."""

    slot: int
    label: BlockLabel


@record(frozen=True, slots=True)
class Fetch:
    """Read a file into a host slot, which nobody else touches until `Fetched`."""

    label: BlockLabel
    slot: int


@record(frozen=True, slots=True)
class Touch:
    """These blocks were of use: their files are the last to be removed. `keys`: as in `BlockLabel.key`."""

    keys: tuple[bytes, ...]


@record(frozen=True, slots=True)
class Discard:
    """Remove the files of this model's blocks, those too whose `Store` came before."""
