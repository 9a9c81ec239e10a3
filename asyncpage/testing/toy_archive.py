"""Host slots and files for a `ToyRunner`'s blocks, in plain memory.

Stand in for the host arena and the archive in a `ToyHouse`, so that a slot given away too early, or a file taken for
another, changes tokens. They outlive the runner, and the files outlive the house.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asyncpage.actors.base import Actor
from asyncpage.messages import BlockLabel, Discard, Fetch, Fetched, Shelved, Store, Stored, Touch
from asyncpage.pipes.mailbox import Address


class ToyArena:
    """Slots of digests and tokens, [slots, block size] each; a fresh one holds nothing that any prompt could match."""

    def __init__(self, slots: int, block_size: int) -> None:
        self.digests: NDArray[np.uint64] = np.zeros((slots, block_size), dtype=np.uint64)
        self.tokens: NDArray[np.int32] = np.full((slots, block_size), -1, dtype=np.int32)


@dataclass(slots=True)
class ToyFiles:
    """What a folder would hold: contents by label. `most`: blocks it takes, the oldest going first."""

    most: int = 1_000_000
    blocks: dict[BlockLabel, tuple[NDArray[np.uint64], NDArray[np.int32]]] = field(default_factory=dict)
    is_broken: bool = False  # neither written nor read any more

    def make_room(self) -> list[BlockLabel]:
        """Remove what the next block has no room beside."""
        gone = list(self.blocks)[: max(0, len(self.blocks) + 1 - self.most)]
        for label in gone:
            del self.blocks[label]
        return gone


class ToyArchive(Actor):
    """Does at once what it is asked, when its message is delivered."""

    name = "archive"

    def __init__(self, arena: ToyArena, files: ToyFiles, kv_manager: Address) -> None:
        self._arena = arena
        self._files = files
        self._kv_manager = kv_manager
        kv_manager.send(Shelved(tuple(files.blocks)))

    def receive(self, message: object) -> None:
        arena, files = self._arena, self._files
        match message:
            case Store(slot, label):
                gone = files.make_room()
                if not files.is_broken:
                    files.blocks[label] = arena.digests[slot].copy(), arena.tokens[slot].copy()
                removed = tuple(label.key for label in gone)
                self._kv_manager.send(Stored(slot, is_stored=not files.is_broken, removed=removed))
            case Fetch(label, slot):
                found = None if files.is_broken else files.blocks.get(label)
                arena.digests[slot], arena.tokens[slot] = (7, -1) if found is None else found
                self._kv_manager.send(Fetched(slot, is_there=found is not None))
            case Discard():
                files.blocks.clear()
            case Touch():
                pass
            case _:
                raise TypeError(f"nobody sends {type(message).__name__} to the archive")
