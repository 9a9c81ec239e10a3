"""The tiers: which blocks lie beside the device, in host slots and in files, and what is copied where in which step.

The block tables and the pool tell it of blocks that get a name, become free or are evicted; the settlement asks what
to save in a step and what of a prompt lies outside the device. Whatever is saved is written to a file too where there
is an archive, so that a restarted server starts warm. What a step saves can be loaded by every later one; its bytes
are stored only when it is back.

A save that finds no slot because the disk is behind waits; what is evicted meanwhile is lost to the tiers.

INVARIANT: a slot is written only while nobody reads it, and what can be read from a slot is, in step order, the block
that its label names.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from asyncpage.core.block_proof import next_proof
from asyncpage.core.file_tier import FileTier
from asyncpage.core.host_slots import HostSlots, TierListener
from asyncpage.messages import BlockLabel, LayerGroup, Prefix, RequestId
from asyncpage.records import record

MOST_SAVES = 8  # of blocks that wait, a step: 6 MB of the demo model, 2 ms
MOST_RESCUES = 32  # of blocks that this very step takes


@record(frozen=True, slots=True)
class Run:
    """Blocks that follow a match and lie outside the device: `labels[i][g]` of the i-th in group g.

    None: nobody will look at that one, it lies behind the group's window.
    """

    labels: tuple[tuple[BlockLabel | None, ...], ...]

    def __len__(self) -> int:
        return len(self.labels)

    def each(self) -> list[BlockLabel]:
        """All of them, a block's groups together."""
        return [label for labels in self.labels for label in labels if label is not None]


NO_RUN = Run(())


@record(frozen=True, slots=True)
class _Move:
    """A copy in a step that is not back. `label` None: a load."""

    number: int
    slot: int
    block: int
    label: BlockLabel | None


class Tier:
    """State of `slots` host slots and, with `has_files`, of what the archive holds: `files` takes its answers."""

    def __init__(self, slots: int, groups: Sequence[LayerGroup], block_size: int, *, has_files: bool) -> None:
        self._groups = tuple(groups)
        self._block_size = block_size
        self._slots = HostSlots(slots)
        self.files = FileTier(self._slots, is_on=has_files)
        self._moves: deque[_Move] = deque()
        self._named: dict[int, BlockLabel] = {}  # the device's blocks that a prompt may find there
        self._unsaved: OrderedDict[int, None] = OrderedDict()
        self._rescued: list[tuple[int, BlockLabel]] = []
        self._counts = {"blocks_saved": 0, "blocks_loaded": 0, "blocks_not_saved": 0}
        self._proofs: tuple[tuple[bytes, ...], int, list[bytes]] = ((), 0, [])

    def tell(self, listener: TierListener | None) -> None:
        """Have `listener` hear of every block that comes and goes from now on."""
        self._slots.listener = listener

    def stats(self) -> dict[str, float]:
        """Gauges and counters. Not saved: blocks that were given up before there was a slot or a step for them."""
        return {"host_blocks": len(self._slots), "file_blocks": len(self.files), **self._counts}

    @property
    def slots_in_use(self) -> int:
        """Host slots that hold a block."""
        return len(self._slots)

    @property
    def can_save(self) -> bool:
        """Whether a block waits to be saved and there is a slot for it."""
        return bool(self._unsaved) and self._slots.room > 0

    def clear(self) -> None:
        """Nothing that was computed so far is found again, here or on the device."""
        self._named.clear()
        self._unsaved.clear()
        self._rescued.clear()
        self._slots.clear()
        self.files.clear()

    # --- the device's blocks ------------------------------------------------------------------------------------------

    def name(self, block: int, label: BlockLabel) -> None:
        """The block is published: from now on it holds what `label` says until it is evicted."""
        self._named[block] = label

    def proof_of(self, block: int) -> bytes | None:
        """The proof of a published block."""
        label = self._named.get(block)
        return None if label is None else label.proof

    def freed(self, block: int) -> None:
        """Nobody holds the block any more; it keeps its contents for now."""
        label = self._named.get(block)
        if label is None:
            return
        if self._slots.place(label.key) is None:
            self._unsaved[block] = None
        else:
            self._slots.touch(label.key)

    def evicted(self, block: int) -> None:
        """The block is about to hold something else, in the step that is being settled."""
        label = self._named.pop(block, None)
        if label is not None and block in self._unsaved:
            del self._unsaved[block]
            if len(self._rescued) < MOST_RESCUES:
                self._rescued.append((block, label))
            else:
                self._counts["blocks_not_saved"] += 1

    def saves(self, number: int) -> list[tuple[int, int]]:
        """What step `number` is to save: (block, slot). What is evicted in it goes first and has this one chance."""
        saves: list[tuple[int, int]] = []
        for block, label in self._rescued:
            self._counts["blocks_not_saved"] += not self._save(number, block, label, saves)
        self._rescued.clear()
        while self._unsaved and len(saves) < MOST_SAVES:
            block = next(iter(self._unsaved))
            if not self._save(number, block, self._named[block], saves):
                break
            del self._unsaved[block]
        self._counts["blocks_saved"] += len(saves)
        return saves

    def _save(self, number: int, block: int, label: BlockLabel, saves: list[tuple[int, int]]) -> bool:
        """False when there is no slot."""
        if self._slots.place(label.key) is not None or self.files.is_coming(label.key):
            return True
        slot = self._slots.take(label)
        if slot is None:
            return False
        self._slots.show(slot)  # to the steps that come after
        self._moves.append(_Move(number, slot, block, label))
        saves.append((block, slot))
        return True

    # --- steps --------------------------------------------------------------------------------------------------------

    def returned(self, number: int) -> None:
        """Every step up to `number` is back: its copies are made."""
        moves = self._moves
        while moves and moves[0].number <= number:
            move = moves.popleft()
            if move.label is not None and move.label is self._slots.label(move.slot):
                self.files.keep(move.slot, move.label)
            self._slots.unpin(move.slot)

    def rewind(self, *, forget: bool) -> list[int]:
        """No step is in flight any more, and whether those that were have made their copies is not known.

        `forget`: the device's blocks are gone. Otherwise returns the blocks whose loads are in doubt, the last first.
        """
        if forget:
            self._named.clear()
            self._unsaved.clear()
        doubtful = [move.block for move in self._moves if move.label is None]
        for block in doubtful:
            self._named.pop(block, None)
            self._unsaved.pop(block, None)
        for move in self._moves:
            if move.label is not None and move.label is self._slots.label(move.slot):
                self._slots.unlabel(move.slot)
                if self._named.get(move.block) is move.label:
                    self._unsaved[move.block] = None
            self._slots.unpin(move.slot)
        self._moves.clear()
        self._rescued.clear()
        return [] if forget else doubtful[::-1]

    # --- what lies outside the device ---------------------------------------------------------------------------------

    def reach(self, request: RequestId, prefix: Prefix, first: int, proof: bytes, most: int) -> Run | None:
        """The blocks of `prefix` from the one at index `first` on that the next step can load, up to block `most`.

        `proof`: of the block before, or the root's. None: more of them lie in files, are being fetched from now on, and
        `request` is told of by `files.woken` when they have come.
        """
        run = self._find(prefix, first, proof, most, self._label)
        missing, room = self._missing(run)
        while len(missing) > room:  # less of it, as far as there are slots
            excess = max(1, (len(missing) - room) // len(self._groups))
            run = self._find(prefix, first, proof, first + len(run) - excess, self._label)
            missing, room = self._missing(run)
        if not missing:
            return run
        if self.files.fetch(request, missing):
            return None
        return self._find(prefix, first, proof, most, self._slots.label_of)

    def _missing(self, run: Run) -> tuple[list[BlockLabel], int]:
        """What of it is in no slot yet, and for how many there are slots beside those that hold the rest."""
        missing, idle = [], 0
        for label in run.each():
            if self._slots.place(label.key) is None:
                missing.append(label)
            else:
                self._slots.touch(label.key)  # so that what is fetched takes other slots first
                idle += self._slots.is_idle(label.key)
        coming = sum(self.files.is_coming(label.key) for label in missing)
        return missing, self._slots.room - idle + coming

    def load(self, number: int, request: RequestId, run: Run, blocks: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """Step `number` loads `run` into `blocks` (one sequence a group, as long): (slot, block)."""
        loads = []
        for index, labels in enumerate(run.labels):
            for label, of_group in zip(labels, blocks, strict=True):
                slot = None if label is None else self._slots.place(label.key)
                if slot is not None:
                    self._slots.pin(slot)
                    self._moves.append(_Move(number, slot, of_group[index], None))
                    loads.append((slot, of_group[index]))
        self._counts["blocks_loaded"] += len(loads)
        self.files.used(request, run.each())
        return loads

    def _find(
        self, prefix: Prefix, first: int, proof: bytes, most: int, label_of: Callable[[bytes], BlockLabel | None]
    ) -> Run:
        """The longest run that `label_of` knows and every group can serve the next token from."""
        names, width = prefix.names, 4 * self._block_size
        proofs = self._proofs_of(prefix, first)
        found: list[list[BlockLabel | None]] = []
        for index in range(first, min(most, len(names))):
            labels = [label_of(names[index] + bytes((group,))) for group in range(len(self._groups))]
            if not any(labels):
                break
            if len(proofs) == len(found):
                before = proofs[-1] if proofs else proof
                proofs.append(next_proof(before, prefix.tokens[index * width : (index + 1) * width]))
            labels = [one if one is not None and one.proof == proofs[len(found)] else None for one in labels]
            if any(one is None for one, spec in zip(labels, self._groups, strict=True) if spec.kind == "full"):
                break
            found.append(labels)
        length = len(found)
        while length and not self._reaches(found, first, length):
            length -= 1
        return Run(tuple(self._seen(labels, first + i, first + length) for i, labels in enumerate(found[:length])))

    def _label(self, key: bytes) -> BlockLabel | None:
        return self._slots.label_of(key) or self.files.label(key)

    def _proofs_of(self, prefix: Prefix, first: int) -> list[bytes]:
        """Proofs from block `first` on, as far as they are computed for this prompt, which may be asked about often."""
        names, start, proofs = self._proofs
        if names is not prefix.names or start != first:
            proofs = []
            self._proofs = (prefix.names, first, proofs)
        return proofs

    def _reaches(self, found: Sequence[Sequence[BlockLabel | None]], first: int, length: int) -> bool:
        """Whether every window group has what the token behind these blocks looks at."""
        for group, spec in enumerate(self._groups):
            if spec.kind == "window":
                begin = spec.first_needed((first + length) * self._block_size, self._block_size)
                if any(found[i][group] is None for i in range(max(0, begin - first), length)):
                    return False
        return True

    def _seen(self, labels: Sequence[BlockLabel | None], index: int, end: int) -> tuple[BlockLabel | None, ...]:
        """Without those that the token behind block `end` cannot see."""
        return tuple(
            None if index < spec.first_needed(end * self._block_size, self._block_size) else label
            for spec, label in zip(self._groups, labels, strict=True)
        )
