"""A runner that computes with its KV blocks instead of a model, so that any paging fault changes its tokens.

Stands in for the executor's runner in tests and demonstrations of the control plane; needs no torch. Each slot of a
block holds a digest of everything up to its token, made from the digest in the slot before, which is read through
the row's block table. A wrong block, a missed copy or a stale slot gives other tokens than `toy_tokens`, the closed
form over the tokens alone. A row may follow a grammar, which is checked to have been told; its tokens are the same
with and without. An adapter gives other digests from the first on, so that shared blocks of two would show.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncpage.errors import ProtocolError
from asyncpage.messages import (
    Handshake,
    LayerGroup,
    LearnAdapter,
    LearnGrammar,
    Lesson,
    NewRow,
    Pooled,
    Pooling,
    Step,
    StepDone,
)
from asyncpage.testing.toy_archive import ToyArena

Guess = Callable[[int, int, Sequence[int], int], Sequence[int]]
"""Drafts of a step's row that knows these tokens, at most so many."""

_MASK = (1 << 64) - 1
_START = 0x9E3779B97F4A7C15


def _mix(digest: int, token: int) -> int:
    digest = ((digest ^ (token + 0x632BE59BD9B4E019)) * 0xD6E8FEB86659FD93) & _MASK
    return digest ^ (digest >> 29)


def _start_of(adapter: str) -> int:
    """The digest in front of the first token."""
    digest = _START
    for byte in adapter.encode():
        digest = _mix(digest, byte)
    return digest


def _next_token(digests: Sequence[int], vocab_size: int) -> int:
    total = 0
    for digest in digests:
        total = _mix(total, digest & 0x7FFFFFFF)
    return (total >> 11) % vocab_size


def toy_tokens(
    prompt: Sequence[int],
    count: int,
    vocab_size: int,
    *,
    windows: Sequence[int] = (0,),
    end: int | None = None,
    adapter: str = "",
) -> list[int]:
    """The closed form: what a `ToyRunner` must answer to `prompt`, up to `count` tokens or the `end` token.

    `windows`: one entry a layer group, 0 for full attention. `adapter`: the identity of the one that it runs with.
    """
    tokens, start = list(prompt), _start_of(adapter)
    for _ in range(count):
        digests = []
        for window in windows:
            digest = start
            for token in tokens[-window:] if window else tokens:
                digest = _mix(digest, token)
            digests.append(digest)
        tokens.append(_next_token(digests, vocab_size))
        if tokens[-1] == end:
            break
    return tokens[len(prompt) :]


def toy_embedding(prompt: Sequence[int], kind: str) -> list[float]:
    """The closed form: what a `ToyRunner` of one full layer group must answer to a prompt that is to be pooled.

    The digests of everything up to each token, of all tokens, the last or the first.
    """
    digests, digest = [], _START
    for token in prompt:
        digest = _mix(digest, token)
        digests.append(digest)
    return _as_vector(digests if kind == "mean" else digests[-1:] if kind == "last" else digests[:1])


def _as_vector(digests: Sequence[int]) -> list[float]:
    """Four numbers, sums of a few bits of each digest, so that every float32 is exact."""
    return [float(sum(digest >> shift & 0xFFF for digest in digests)) for shift in (0, 16, 32, 48)]


@dataclass(slots=True)
class _Row:
    """`seen`: of a row that is to be pooled, the digests of the tokens computed in it. `start`: see `_start_of`."""

    tokens: array[int]
    computed: int
    tables: list[dict[int, int]]
    pooling: Pooling | None
    seen: list[int]
    start: int
    ends: tuple[int, ...]


class ToyRunner:
    """Implements the executor's `Runner` over blocks of digests."""

    def __init__(
        self,
        handshake: Handshake,
        *,
        poison: int | None = None,
        arena: ToyArena | None = None,
        is_late: Callable[[int, int], bool] = lambda number, row: False,
        guess: Guess | None = None,
    ) -> None:
        """`poison`: a token whose computation raises. `is_late`: whether in this step this row cannot sample yet.

        `guess`: makes drafts; without it none may be asked for.
        """
        self.handshake = handshake
        self._arena = arena
        self._poison = poison
        self._is_late = is_late
        self._guess = guess
        self._epoch = 0
        self._rows: dict[int, _Row] = {}
        self._grammars: set[bytes] = set()
        self._adapters: dict[int, str] = {}
        size = handshake.block_size
        self._digests: NDArray[np.uint64] = np.zeros((handshake.blocks, size), dtype=np.uint64)
        self._tokens: NDArray[np.int32] = np.full((handshake.blocks, size), -1, dtype=np.int32)

    def execute(self, step: Step) -> StepDone:
        """Run one step. Errors: `ProtocolError` when the step contradicts the rows; `RuntimeError` on the poison."""
        if step.epoch > self._epoch:
            self._rows.clear()
            self._epoch = step.epoch
        for row in step.removed.tolist():
            del self._rows[row]
        for new in step.added:
            self._add(new)
        for row, group, index, block in step.blocks.tolist():
            self._rows[row].tables[group][index] = block
        self._move(step)
        for source, destination, slots in step.copies.tolist():
            self._digests[destination, :slots] = self._digests[source, :slots]
            self._tokens[destination, :slots] = self._tokens[source, :slots]
        plans = list(zip(step.rows.tolist(), step.counts.tolist(), strict=True))
        drafts = {row: self._draft(step.number, row, count) for row, count in plans}
        rows, counts, tokens, late = [], [], [], []
        pooled: list[Pooled] = []
        for row, count in plans:
            held = self._rows[row]
            known, end = len(held.tokens), min(held.computed + count, len(held.tokens))
            held.tokens.extend(drafts[row])  # behind what it knows, as if they were its tokens
            for position in range(held.computed, end + len(drafts[row])):
                self._write(held, position)
                if held.pooling is not None:
                    held.seen.append(int(self._digests[self._slot(held, 0, position)]))
            del held.tokens[known:]
            held.computed = end
            if end < known:
                continue
            if held.pooling is not None:
                pooled.append(Pooled(row, self._pool(held, held.pooling)))
            elif self._is_late(step.number, row):
                held.computed -= 1
                late.append(row)
            else:
                got = self._verify(held, drafts[row])
                rows.append(row)
                counts.append(len(got))
                tokens += got
        drafted = [len(drafts[row]) for row in rows]
        return StepDone(
            number=step.number,
            epoch=step.epoch,
            rows=np.array(rows, dtype=np.int32),
            counts=np.array(counts, dtype=np.int32),
            tokens=np.array(tokens, dtype=np.int32),
            pooled=tuple(pooled),
            late=tuple(late),
            drafted=np.array(drafted if any(drafted) else (), dtype=np.int32),
        )

    def _draft(self, number: int, row: int, count: int) -> Sequence[int]:
        """What the row tries in this step. Errors: as `execute`."""
        held = self._rows[row]
        asked = held.computed + count - len(held.tokens)
        if asked > 0 and self._guess is None:
            raise ProtocolError(f"row {row} knows {len(held.tokens)} tokens, asked for {held.computed + count}")
        drafts = self._guess(number, row, held.tokens, asked) if asked > 0 and self._guess is not None else ()
        assert len(drafts) <= max(0, asked)
        if self._poison in (*held.tokens[held.computed : held.computed + count], *drafts):
            raise RuntimeError(f"token {self._poison} cannot be computed")
        return drafts

    def _verify(self, held: _Row, drafts: Sequence[int]) -> list[int]:
        """The row's next token, and those behind it while drafts stand."""
        got: list[int] = []
        for draft in (*drafts, -1):
            got.append(self._sample(held))
            held.tokens.append(got[-1])
            if got[-1] != draft or draft in held.ends:
                break
            held.computed += 1  # its digest is in place already
        return got

    def learn(self, lesson: Lesson) -> None:
        """Rows may name this grammar or slot from now on, and grammars that are forgotten no more."""
        if isinstance(lesson, LearnGrammar):
            self._grammars.difference_update(lesson.forget)
            self._grammars.add(lesson.constraint.digest)
        elif isinstance(lesson, LearnAdapter):
            self._adapters[lesson.slot] = lesson.adapter.identity

    def close(self) -> None:
        """Nothing to let go of."""

    def _move(self, step: Step) -> None:
        """To and from the host."""
        arena = self._arena
        if arena is None:
            if len(step.saves) or len(step.loads):
                raise ProtocolError("this runner has no arena")
            return
        for block, slot in step.saves.tolist():
            arena.digests[slot] = self._digests[block]
            arena.tokens[slot] = self._tokens[block]
        for slot, block in step.loads.tolist():
            self._digests[block] = arena.digests[slot]
            self._tokens[block] = arena.tokens[slot]

    def _add(self, new: NewRow) -> None:
        if new.row in self._rows:
            raise ProtocolError(f"row {new.row} is taken")
        if (named := new.constraint) is not None and not named.compiled and named.digest not in self._grammars:
            raise ProtocolError(f"row {new.row} follows a grammar that was not told")
        tables = [dict(enumerate(np.frombuffer(table, dtype=np.int32).tolist())) for table in new.tables]
        adapter = "" if not new.adapter_slot else self._adapters.get(new.adapter_slot)
        if adapter is None:
            raise ProtocolError(f"row {new.row} runs with adapter slot {new.adapter_slot}, of which nothing was told")
        start = _start_of(adapter)
        self._rows[new.row] = _Row(
            array("i", new.tokens), new.computed, tables, new.pooling, [], start, new.end_token_ids
        )

    def _slot(self, row: _Row, group: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.handshake.block_size)
        block = row.tables[group].get(index, 0)
        if not 0 < block < self.handshake.blocks:
            raise ProtocolError(f"position {position} lies in block {block} of group {group}")
        return block, offset

    def _write(self, row: _Row, position: int) -> None:
        for group, spec in enumerate(self.handshake.groups):
            slot = self._slot(row, group, position)
            self._tokens[slot] = row.tokens[position]
            if spec.kind == "full":
                before = int(self._digests[self._slot(row, group, position - 1)]) if position else row.start
                self._digests[slot] = _mix(before, row.tokens[position])

    def _pool(self, row: _Row, pooling: Pooling) -> bytes:
        if pooling.kind != "last" and len(row.seen) < len(row.tokens):
            raise ProtocolError(f"{len(row.seen)} of {len(row.tokens)} tokens were computed, all are wanted")
        digests = {"mean": row.seen, "last": row.seen[-1:], "cls": row.seen[:1]}[pooling.kind]
        return np.array(_as_vector(digests), dtype="<f4").tobytes()

    def _sample(self, row: _Row) -> int:
        digests = []
        last = row.computed - 1
        for group, spec in enumerate(self.handshake.groups):
            if spec.kind == "full":
                digests.append(int(self._digests[self._slot(row, group, last)]))
            else:
                digest = row.start
                for position in range(max(0, last - spec.window + 1), last + 1):
                    digest = _mix(digest, int(self._tokens[self._slot(row, group, position)]))
                digests.append(digest)
        return _next_token(digests, self.handshake.vocab_size)


def toy_handshake(
    *,
    blocks: int = 64,
    block_size: int = 4,
    groups: tuple[LayerGroup, ...] = (LayerGroup("full", 0, 1),),
    max_model_len: int = 128,
    vocab_size: int = 97,
) -> Handshake:
    """A handshake for a `ToyRunner` of this size."""
    return Handshake(
        fingerprint="toy",
        pid=0,
        rank=0,
        blocks=blocks,
        block_size=block_size,
        groups=groups,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        dtype="int32",
        kv_dtype="uint64",
        device="cpu",
        attention_backend="toy",
        load_ms=0,
        kv_bytes=blocks * block_size * 12,
    )
