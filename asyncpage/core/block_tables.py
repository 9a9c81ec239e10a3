"""Which blocks each running row holds, in columns, and the moves that change that.

The settlement decides; this carries it out. One table a layer group, indexed by position // block size, so an entry
behind a window is 0 (nobody looks there). A block that a step in flight may name returns to the pool only when that
step is back.

INVARIANT: a row writes only into blocks that it alone holds and that have no name. A row that joins with a cached
beginning starts on a fresh block; one that shares a part of a block copies that part when it joins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.block_names import root_name
from asyncpage.core.block_pool import BlockPool
from asyncpage.core.block_proof import next_proof, root_proof
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import Branch, Match, PrefixIndex
from asyncpage.core.tier import Run, Tier
from asyncpage.messages import NO_PARENT, BlockLabel, Int32, LayerGroup, Prefix, RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class Ledger:
    """Where every block is. `blank` + `cached` + `referenced` = `total`, always."""

    total: int
    blank: int
    cached: int
    referenced: int
    leaving: int  # referenced only because a step in flight may still name them


@dataclass(slots=True, eq=False)
class _Life:
    """What a row's request brings to the index. `branch` None: its blocks are not published (any more).

    `published`: its first blocks that are in the index or will never be. `names`: of its full blocks, as far as known.
    `proof`: with tiers, that of its last published block.
    """

    request: RequestId
    prefix: Prefix
    names: list[bytes]
    branch: Branch | None
    published: int
    is_lost: bool = False  # where its branch is, is still to be looked up
    proof: bytes | None = None


class BlockTables:
    """Rows' block tables over one pool.

    `tables` [G, rows, width] block ids; `held` [rows] entries in use, the same in every group, and
    `room` the tokens that fit them. `step`: the one
    that is being settled, or was last. `cause`: the request that takes blocks now, for those who hear of evictions.
    """

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        groups: Sequence[LayerGroup],
        rows: int,
        max_tokens: int,
        index: PrefixIndex | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self.index: PrefixIndex = index if index is not None else PrefixChain(groups, block_size)
        self.tier = tier
        self.pool = BlockPool(blocks, self.index, tier)
        width = -(-max_tokens // block_size)
        self.tables: NDArray[np.int32] = np.zeros((len(groups), rows, width), dtype=np.int32)
        # A look at many places: through these a third of the time that two index arrays take.
        self._flat: NDArray[np.int32] = self.tables.reshape(len(groups), -1)
        self._strides = np.array((width, 1), dtype=np.int64)
        self.held: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self.room: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self.step = 0
        self.cause = RequestId(0)
        self._behind: NDArray[np.int32] = np.zeros(
            (len(groups), rows), dtype=np.int32
        )  # entries already dropped behind the window
        self._lives: list[_Life | None] = [None] * rows
        self._leaving: deque[tuple[int, Sequence[int]]] = deque()
        self.has_window = any(group.kind == "window" for group in groups)

    def entries(self, tokens: int) -> int:
        """Table entries that `tokens` tokens need."""
        return -(-tokens // self.block_size)

    def reset(self, *, forget: bool) -> None:
        """No row exists and no step is in flight; with `forget` the contents of every block are gone too."""
        if forget:
            self._leaving.clear()
            self.pool.reset()
            self.held[:] = self.room[:] = 0
            self._behind[:] = 0
            self._lives = [None] * len(self._lives)
        else:
            for row in np.flatnonzero(self.held).tolist():
                self.release(row, returned=self.step)
            self.collect(returned=self.step)
        if self.tier is not None:
            self.pool.forget(self.tier.rewind(forget=forget))

    def forget_prefixes(self) -> int:
        """Nothing that was computed so far is found again, by nobody; running rows keep their blocks.

        Returns the free blocks that are blank now and were not.
        """
        self.index.clear()
        if self.tier is not None:
            self.tier.clear()
        for life in self._lives:
            if life is not None:
                life.branch, life.is_lost = None, False
        return self.pool.forget_cached()

    # --- a row's life -------------------------------------------------------------------------------------------------

    def open(self, row: int, request: RequestId, prefix: Prefix, *, published: int, branch: Branch | None) -> None:
        """A row begins a life without blocks; `branch`: where its first `published` blocks end, None publishes none."""
        self._lives[row] = _Life(request, prefix, list(prefix.names), branch, published)

    def open_fork(
        self, row: int, request: RequestId, prefix: Prefix, *, published: int, sibling: int, feeds: bool
    ) -> None:
        """As `open`, behind blocks of the row `sibling` that may not be published yet, or never will be."""
        self.open(row, request, prefix, published=published, branch=None)
        life, other = self._lives[row], self._lives[sibling]
        assert life is not None
        life.is_lost = feeds and other is not None and (other.branch is not None or other.is_lost)

    def life(self, row: int) -> _Life | None:
        """What the request that lives in a row brought; None where nobody does."""
        return self._lives[row]

    def adopt(
        self, row: int, blocks: Sequence[Sequence[int]], fresh: int = 0, *, donors: Sequence[int] = ()
    ) -> list[list[int]]:
        """The first blocks of an open row that nobody has been told of, one list a group.

        It shares `blocks`, which hold the beginning of its tokens (one sequence a group, equally long), and gets
        `fresh` ones behind them. `donors` are shared too, before any is taken: they may be free ones.
        """
        pool = self.pool
        for ids in blocks:
            pool.share(ids)
        pool.share(donors)
        held = len(blocks[0]) + fresh
        columns = [[*ids, *pool.take(fresh)] for ids in blocks]
        for group, ids in enumerate(columns):
            self.tables[group, row, :held] = ids
        self.held[row] = held
        self.room[row] = held * self.block_size
        return columns

    def can_fork(self, row: int, tokens: int) -> bool:
        """Whether the row still holds all that a sibling after its first `tokens` tokens will look at."""
        return all(
            spec.first_needed(tokens, self.block_size) >= int(self._behind[group, row])
            for group, spec in enumerate(self.groups)
            if spec.kind == "window"
        )

    def beginning(self, row: int, tokens: int) -> list[list[int]]:
        """The row's blocks that hold its first `tokens` tokens, one list a group."""
        ids: list[list[int]] = self.tables[:, row, : self.entries(tokens)].tolist()
        return ids

    def extend(self, rows: Int32, entries: Int32) -> Int32:
        """Give each row `entries` further blocks in every group; the caller has checked the pool.

        Returns [N, 4] columns row, group, index, block.
        """
        total = int(entries.sum())
        groups = len(self.groups)
        new = np.empty((groups, total, 4), dtype=np.int32)
        if total:
            held = self.held[rows]
            before = np.cumsum(entries, dtype=np.int32) - entries
            new[:, :, 0] = np.repeat(rows, entries)
            new[:, :, 2] = np.repeat(held - before, entries) + np.arange(total, dtype=np.int32)
            for group in range(groups):
                part = new[group]
                part[:, 1] = group
                part[:, 3] = self._take(rows, entries, total)
                self.tables[group, part[:, 0], part[:, 2]] = part[:, 3]
            held += entries
            self.held[rows] = held
            self.room[rows] = held * self.block_size
        return new.reshape(-1, 4)

    def extend_by_one(self, rows: Int32) -> Int32:
        """`extend` by one block in every group: what decoding does."""
        count, groups = len(rows), len(self.groups)
        new = np.empty((groups * count, 4), dtype=np.int32)
        held = self.held.take(rows)
        for group in range(groups):
            part = new[group * count : (group + 1) * count]
            blocks = np.array(self._take(rows, None, count), dtype=np.int32)
            part[:, 0], part[:, 1], part[:, 2], part[:, 3] = rows, group, held, blocks
            self.tables[group].put(rows * np.int64(self.tables.shape[2]) + held, blocks)
        held += 1
        self.held[rows] = held
        held *= self.block_size
        self.room[rows] = held
        return new

    def copy_last(self, row: int, tokens: int) -> list[tuple[int, int, int]]:
        """Copy on write: fresh blocks take the place of the row's last ones, which `tokens` tokens end in.

        Returns (source, destination, slots to copy), one a group.
        """
        index = int(self.held[row]) - 1
        sources = self.tables[:, row, index].tolist()
        fresh = self.pool.take(len(sources))
        self.tables[:, row, index] = fresh
        self.leave(sources)
        slots = tokens - index * self.block_size
        return [(source, block, slots) for source, block in zip(sources, fresh, strict=True)]

    def leave(self, blocks: Sequence[int]) -> None:
        """The holder needs these no more once the step that is being settled is back."""
        self._leaving.append((self.step, blocks))

    def drop_behind_window(self, row: int, computed: int) -> list[tuple[int, int, int, int]]:
        """Give back blocks that no later token of the row looks at; returns the table entries that became 0.

        Steps before the one that is being settled may still look at them. A block that is still to be published stays
        until it is: others may want to begin where it is needed.
        """
        changes = []
        life = self._lives[row]
        is_feeding = life is not None and (life.branch is not None or life.is_lost)
        most = life.published if life is not None and is_feeding else len(self.tables[0, row])
        for group, spec in enumerate(self.groups):
            if spec.kind == "full":
                continue
            begin = int(self._behind[group, row])
            end = min(spec.first_needed(computed, self.block_size), most)
            ids = [block for block in self.tables[group, row, begin:end].tolist() if block]
            if ids:
                self._leaving.append((self.step - 1, ids))
                self.tables[group, row, begin:end] = 0
                changes += [(row, group, index, 0) for index in range(begin, end)]
            self._behind[group, row] = max(begin, end)
        return changes

    def release(self, row: int, *, returned: int, tail: bytes = b"") -> None:
        """The row's life ends: its blocks go back, tail first, at once or when no step in flight can name them.

        `tail`: its tokens behind the last full block; the block that holds them can be a donor.
        """
        held = int(self.held[row])
        columns: list[list[int]] = self.tables[:, row, :held].tolist()
        life = self._lives[row]
        if life is not None and tail and life.branch is not None and life.published < held:
            self.index.publish_tail(life.branch, tail, [ids[life.published] for ids in columns])
        self._lives[row] = None
        self.held[row] = self.room[row] = 0
        if self.has_window:
            self._behind[:, row] = 0
        backwards = [*chain.from_iterable(zip(*[ids[::-1] for ids in columns], strict=True))]
        if self.step - 1 > returned:
            self._leaving.append((self.step - 1, backwards))
        else:
            self.pool.drop(backwards)

    def collect(self, *, returned: int) -> None:
        """Give back what only steps up to `returned` still named."""
        waiting = self._leaving
        while waiting and waiting[0][0] <= returned:
            self.pool.drop(waiting.popleft()[1])

    @property
    def leaving(self) -> int:
        """Blocks (at most) that come back when the steps in flight do."""
        return sum(len(ids) for _, ids in self._leaving)

    # --- names --------------------------------------------------------------------------------------------------------

    def publish(self, filled: Int32, tokens: Int32) -> list[tuple[int, bytes]]:
        """Blocks are full of computed, accepted tokens: name them. Shapes as in `Reserve`.

        Returns (row, name) of those that can be found from now on; without a name when the row publishes no more.
        """
        data, width = tokens.tobytes(), 4 * self.block_size
        ids = zip(*self._flat.take(filled.dot(self._strides), axis=1).tolist(), strict=True)
        lives, publish = self._lives, self.index.publish
        found = []
        for (row, index), blocks, at in zip(filled.tolist(), ids, range(0, len(data), width), strict=True):
            life = lives[row]
            if life is None:
                continue
            if life.branch is None and not self._looked_up(life, index):
                found.append((row, b""))
                continue
            block_tokens, names = data[at : at + width], life.names
            if index < len(names):
                name = names[index]
            else:
                name = sha256((names[-1] if names else root_name(life.prefix.root)) + block_tokens).digest()
                names.append(name)
            life.branch = branch = publish(life.branch, name, block_tokens, blocks)
            life.published = index + 1
            if self.tier is not None:
                self._label(self.tier, row, life, index, block_tokens, blocks)
            found.append((row, b"" if branch is None else name))
        return found

    def proof_behind(self, root: bytes, blocks: Sequence[int]) -> bytes | None:
        """The proof of the last of a prompt's published blocks: `blocks` are that one in each group, () is the root."""
        assert self.tier is not None
        if not len(blocks):
            return root_proof(root)
        return next((proof for block in blocks if (proof := self.tier.proof_of(block)) is not None), None)

    def load(self, row: int, match: Match, run: Run) -> list[tuple[int, int]]:
        """The row's blocks behind `match` come from outside the device, in the step that is being settled.

        They are published at once: whoever shares them reads them after they are loaded. Returns (slot, block).
        """
        tier, life = self.tier, self._lives[row]
        assert tier is not None
        assert life is not None
        first = len(match.blocks[0])
        ids: list[list[int]] = self.tables[:, row, first : first + len(run)].tolist()
        branch, width = match.branch, 4 * self.block_size
        for index, (labels, blocks) in enumerate(zip(run.labels, zip(*ids, strict=True), strict=True), start=first):
            loaded = [block if label is not None else 0 for block, label in zip(blocks, labels, strict=True)]
            if branch is not None:
                tokens = life.prefix.tokens[index * width : (index + 1) * width]
                branch = self.index.publish(branch, life.names[index], tokens, loaded)
            # Without a full group, nobody looks at a block behind every window, and none of it is loaded.
            life.proof = next((label.proof for label in labels if label is not None), None)
            for label, block in zip(labels, loaded, strict=True):
                if label is not None and self.index.holds(block):
                    tier.name(block, label)
        if life.branch is not None:
            life.branch = branch
        return tier.load(self.step, life.request, run, ids)

    def _label(self, tier: Tier, row: int, life: _Life, index: int, tokens: bytes, blocks: Sequence[int]) -> None:
        """Tell the tier what the row's block at `index` holds, which was published just now."""
        if life.proof is None:
            life.proof = self.proof_behind(life.prefix.root, self.tables[:, row, index - 1].tolist() if index else ())
            if life.proof is None:
                return
        life.proof = next_proof(life.proof, tokens)
        parent = life.names[index - 1] if index else NO_PARENT
        for group, block in enumerate(blocks):
            if block and self.index.holds(block):
                tier.name(block, BlockLabel(life.names[index], group, parent, tokens, life.proof))

    def _looked_up(self, life: _Life, index: int) -> bool:
        if life.is_lost:
            life.is_lost = False
            size = self.block_size
            match = self.index.match(life.prefix, index * size)
            if len(match.blocks[0]) == index:
                life.branch = match.branch
        return life.branch is not None

    def _take(self, rows: Int32, entries: Int32 | None, total: int) -> list[int]:
        """Blocks for these rows, `entries` each (None: one), whoever has to make room for whom."""
        if total <= self.pool.blank:
            return self.pool.take(total)
        taken: list[int] = []
        counts = [1] * total if entries is None else entries.tolist()
        for row, count in zip(rows.tolist(), counts, strict=True):
            life = self._lives[row]
            if life is not None:
                self.cause = life.request
            taken += self.pool.take(count)
        return taken

    def ledger(self) -> Ledger:
        """Where every block is, counted afresh."""
        return Ledger(
            total=self.pool.total,
            blank=self.pool.blank,
            cached=self.pool.cached,
            referenced=self.pool.referenced(),
            leaving=len({block for _, ids in self._leaving for block in ids}),
        )
