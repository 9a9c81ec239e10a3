"""The persistent batch: what every row knows, how far it is computed and which blocks it holds, in columns.

The runner owns one. A request is sent whole once; after that a step brings only differences, and the tokens that the
rows gain are appended here.

INVARIANT: a step that does not fit these columns (an unknown row, more tokens than known, a block outside the pool)
raises before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncpage.errors import ProtocolError
from asyncpage.messages import Int32, NewRow, Step

_MOST_ROWS = 65_536  # a row number beyond this is not one of ours; memory follows the greatest row


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What rows and steps keep to: blocks of the pool (with block 0), rows and tokens of a step, drafts of a row."""

    groups: int
    block_size: int
    blocks: int
    max_model_len: int
    max_rows: int
    max_tokens: int
    max_drafts: int = 0


class PersistentBatch:
    """Columns over rows; a row number is an index into all of them.

    `tokens` [rows, max_model_len + 1]; `known`, `computed`, `prompts` (prompt tokens) [rows]; `tables`
    [groups, rows, blocks a row]; `lives`, `is_out` (has failed alone or was pooled, waits to be removed) and
    `is_draftless` (drafts have spoilt its logits, it tries none any more) [rows]; `ends`: of each row, the ids that end
    it.
    """

    def __init__(self, shape: BatchShape) -> None:
        self.shape = shape
        self.clear()

    def clear(self) -> None:
        """Start with no rows."""
        shape = self.shape
        rows = shape.max_rows
        # Zeroed pages cost nothing until a row is written, so every row is given its greatest width.
        self.tokens: Int32 = np.zeros((rows, shape.max_model_len + 1), dtype=np.int32)
        self.tables: Int32 = np.zeros((shape.groups, rows, -(-shape.max_model_len // shape.block_size)), dtype=np.int32)
        self.known: Int32 = np.zeros(rows, dtype=np.int32)
        self.computed: Int32 = np.zeros(rows, dtype=np.int32)
        self.prompts: Int32 = np.zeros(rows, dtype=np.int32)
        self.lives: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self.is_out: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self.is_draftless: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._seen: Int32 = np.zeros(rows, dtype=np.int32)
        self.ends: dict[int, frozenset[int]] = {}

    def known_of(self, row: int) -> Int32:
        """Everything the row knows, a view."""
        return self.tokens[row, : self.known[row]]

    def remove(self, rows: Int32) -> None:
        """These rows are free. Errors: `ProtocolError` when one of them was."""
        if len(rows):
            self._check_living(rows, "removes")
            self.lives[rows] = False
            self.is_out[rows] = False
            self.is_draftless[rows] = False

    def add(self, new: NewRow) -> Int32:
        """A request moves in; returns its tokens. Errors: `ProtocolError` when the row or its columns do not fit."""
        row, shape = new.row, self.shape
        if not 0 <= row < _MOST_ROWS:
            raise ProtocolError(f"a step adds row {row}; rows are numbered from 0 to {_MOST_ROWS - 1}")
        if row >= len(self.known):
            self._grow(row + 1)
        if self.lives[row]:
            raise ProtocolError(f"a step adds row {row}, which is taken; it must be removed first")
        tokens = np.frombuffer(new.tokens, dtype="<i4")
        if not 0 <= new.computed < len(tokens) <= shape.max_model_len or not 0 < new.prompt_tokens <= len(tokens):
            raise ProtocolError(
                f"a step adds row {row} with {len(tokens)} tokens ({new.prompt_tokens} of prompt, {new.computed} "
                f"computed): at least one must be left to compute, and {shape.max_model_len} are the most"
            )
        if len(new.tables) != shape.groups:
            raise ProtocolError(f"row {row} has {len(new.tables)} block tables, the model has {shape.groups} groups")
        for group, column in enumerate(new.tables):
            table = np.frombuffer(column, dtype="<i4")
            if len(table) > self.tables.shape[2]:
                raise ProtocolError(
                    f"row {row} has a table of {len(table)} blocks, {self.tables.shape[2]} are the most"
                )
            self._check_blocks(table)
            self.tables[group, row, : len(table)] = table
            self.tables[group, row, len(table) :] = 0
        self.tokens[row, : len(tokens)] = tokens
        self.known[row] = len(tokens)
        self.computed[row] = new.computed
        self.prompts[row] = new.prompt_tokens
        self.lives[row] = True
        self.ends[row] = frozenset(new.end_token_ids)
        return tokens

    def place_blocks(self, blocks_N4: Int32) -> None:
        """Enter new blocks (row, group, index, block). Errors: `ProtocolError`."""
        if not len(blocks_N4):
            return
        row, group, index, block = blocks_N4.T
        self._check_living(row, "gives blocks to")
        if _outside(group, self.shape.groups) or _outside(index, self.tables.shape[2]):
            raise ProtocolError("a step gives a block a place outside its row's table")
        self._check_blocks(block)
        self.tables[group, row, index] = block

    def check_moves(self, step: Step) -> None:
        """What the step saves, loads and copies. Errors: `ProtocolError` when a block is not one to be used.

        Slots of the host arena are checked where it is mapped, except that nothing is written twice.
        """
        if not len(step.saves) + len(step.loads) + len(step.copies):
            return
        copies, loads, saves = step.copies, step.loads, step.saves
        blocks = np.concatenate([copies[:, :2].ravel(), loads[:, 1], saves[:, 0]])
        self._check_blocks(blocks)
        if not blocks.all():
            raise ProtocolError("a step copies, loads or saves block 0, which holds nothing")
        written = np.concatenate([copies[:, 1], loads[:, 1]])
        if _has_twins(written):
            raise ProtocolError("a step copies or loads two blocks into one")
        if _has_twins(saves[:, 1]):
            raise ProtocolError("a step saves two blocks into one slot")
        tokens = copies[:, 2]
        if len(tokens) and (int(tokens.min()) < 1 or int(tokens.max()) > self.shape.block_size):
            raise ProtocolError(
                f"a step copies {int(tokens.min())} to {int(tokens.max())} tokens of a block; "
                f"1 to {self.shape.block_size} can be"
            )

    def chosen(self, step: Step) -> tuple[Int32, Int32]:
        """Rows and counts of `step` that are to be computed: all but those that are out.

        Errors: `ProtocolError` when they do not fit the rows or the limits of a step.
        """
        rows, counts = step.rows, step.counts
        if len(rows) != len(counts) or len(rows) > self.shape.max_rows:
            raise ProtocolError(
                f"a step names {len(rows)} rows and {len(counts)} counts; {self.shape.max_rows} rows are the most"
            )
        if not len(rows):
            return rows, counts
        self._check_living(rows, "computes")
        places = np.arange(len(rows), dtype=np.int32)
        self._seen[rows] = places
        if not np.array_equal(self._seen[rows], places):
            raise ProtocolError("a step names a row twice")
        out = self.is_out[rows]
        if out.any():
            rows, counts = rows[~out], counts[~out]
        if len(rows) and counts.min() < 1:
            raise ProtocolError("a step computes no token of a row that it names")
        if int(counts.sum()) > self.shape.max_tokens:
            raise ProtocolError(f"a step computes {int(counts.sum())} tokens, {self.shape.max_tokens} are the most")
        ends = self.computed[rows] + counts
        most = self.known[rows] + self.shape.max_drafts
        if (ends > most).any() or (ends > self.shape.max_model_len).any():
            row = int(rows[np.argmax(ends - most)])
            raise ProtocolError(
                f"a step computes row {row} up to a token it does not have: {int(self.computed[row])} are computed, "
                f"{int(self.known[row])} known, {self.shape.max_drafts} drafts and {self.shape.max_model_len} tokens "
                "the most"
            )
        return rows, counts

    def advance(self, rows: Int32, counts: Int32) -> None:
        """The forward pass has succeeded: these tokens have their KV in place."""
        self.computed[rows] += counts

    def place_drafts(self, rows: Int32, counts: Int32, tokens: Int32) -> None:
        """Guesses behind what each of these rows knows: `counts` [R] of `tokens` [sum counts]."""
        owners = np.repeat(rows, counts)
        places = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.tokens[owners, self.known[owners] + places] = tokens

    def leave_one(self, rows: Int32) -> None:
        """Of all that these rows know the last token is to be computed, whatever was beyond it."""
        self.computed[rows] = self.known[rows] - 1

    def append(self, rows: Int32, tokens: Int32) -> None:
        """Each of these rows gains a token."""
        known = self.known[rows]
        self.tokens[rows, known] = tokens
        self.known[rows] = known + 1

    def _check_living(self, rows: Int32, does: str) -> None:
        if _outside(rows, len(self.lives)) or not self.lives[rows].all():
            raise ProtocolError(f"a step {does} a row that holds no request (rows {rows.tolist()[:8]} ...)")

    def _check_blocks(self, blocks: Int32) -> None:
        if _outside(blocks, self.shape.blocks):
            raise ProtocolError(
                f"a step names blocks from {int(blocks.min())} to {int(blocks.max())}; the pool has {self.shape.blocks}"
            )

    def _grow(self, rows: int) -> None:
        """Room for this many rows; the scheduler may use more numbers than run at once."""
        more = max(rows, 2 * len(self.known)) - len(self.known)
        self.tokens = np.pad(self.tokens, ((0, more), (0, 0)))
        self.tables = np.pad(self.tables, ((0, 0), (0, more), (0, 0)))
        for name in ("known", "computed", "prompts", "lives", "is_out", "is_draftless", "_seen"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))


def _has_twins(values: Int32) -> bool:
    return len(np.unique(values)) < len(values)


def _outside(values: Int32, end: int) -> bool:
    return bool(len(values)) and (int(values.min()) < 0 or int(values.max()) >= end)
