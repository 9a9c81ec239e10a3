"""The wire: every message to and from an executor as bytes, and back.

A link's two ends each have an `Encoder` for what they send and a `Decoder` for what they receive. `Step` and
`StepDone` are a fixed header and int32 columns; rows and counts that equal the last message's are left out, so that a
step of steady decode is 64 bytes whatever the batch. Everything rarer is a checked msgpack record. Numbers are in the
machine's byte order: both ends share a machine.

Layout of both: header; columns in the order of the fields (`StepDone`: rows, counts, tokens, drafted, then with
logprobs token_logprobs, ranks, top_ids, top_logprobs); what is left is the record of the fields that are no columns.

INVARIANT: `Decoder.decode(b"".join(Encoder.encode(m)))` equals m for every sequence of messages; for any other bytes it
raises `ProtocolError`, having allocated no more than a small multiple of their length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncpage.errors import ProtocolError
from asyncpage.messages import (
    EMPTY,
    EMPTY_BLOCKS,
    EMPTY_PAIRS,
    EMPTY_TRIPLES,
    FromExecutor,
    Handshake,
    Int32,
    LearnAdapter,
    LearnGrammar,
    LearnVocabulary,
    Load,
    LoadFailed,
    Logprobs,
    NewRow,
    Pooled,
    PromptLogprobs,
    RankLoaded,
    RunExperts,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
    ToExecutor,
)
from asyncpage.pipes.record import pack, unpack

Message = ToExecutor | FromExecutor

TO_EXECUTOR: frozenset[type] = frozenset(
    (Step, LearnVocabulary, LearnGrammar, LearnAdapter, Load, RunExperts, Shutdown)
)
FROM_EXECUTOR: frozenset[type] = frozenset((StepDone, StepFailed, Handshake, RankLoaded, LoadFailed))

_STEP_KIND, _DONE_KIND = 1, 2
_KINDS: dict[type, int] = {
    Step: _STEP_KIND, StepDone: _DONE_KIND, StepFailed: 3, Load: 4, LoadFailed: 5, Handshake: 6, Shutdown: 7,
    LearnVocabulary: 8, LearnGrammar: 9, RunExperts: 10, RankLoaded: 11, LearnAdapter: 12,
}  # fmt: skip
_CLASSES: dict[int, type] = {kind: cls for cls, kind in _KINDS.items()}

_KIND = struct.Struct("=I")
_STEP = struct.Struct("=IIqqIIIIII")  # kind, flags, number, epoch, rows, removed, blocks, copies, saves, loads
_DONE = struct.Struct(
    "=IIqqqqIIII"
)  # kind, flags, number, epoch, elapsed_us, draft_us, rows, tokens, drafted, top logprobs

_SAME_ROWS = 1  # rows and counts are those of the last message that had any
_HAS_LOGPROBS = 2
_HAS_RECORD = 4

_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class _StepRecord:
    added: tuple[NewRow, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _DoneRecord:
    prompt_logprobs: tuple[PromptLogprobs, ...]
    failed: tuple[tuple[int, str], ...]
    pooled: tuple[Pooled, ...]
    late: tuple[int, ...]


_NO_RECORD = _DoneRecord((), (), (), ())


class Encoder:
    """One direction's sender; remembers the last rows and counts."""

    def __init__(self) -> None:
        self._rows: bytes | None = None
        self._counts: bytes | None = None

    def encode(self, message: Message) -> list[bytes]:
        """The message as parts whose concatenation is the wire form.

        Errors: `ProtocolError` when a column has the wrong dtype or shape, or a field a value no link carries; then
        call `forget`.
        """
        try:
            return self._encode(message)
        except struct.error as error:
            raise ProtocolError(f"{type(message).__name__} holds a number that no link carries: {error}") from error

    def _encode(self, message: Message) -> list[bytes]:
        match message:
            case Step():
                return self._step(message)
            case StepDone():
                return self._done(message)
            case _ if type(message) in _KINDS:
                return [_KIND.pack(_KINDS[type(message)]), pack(message)]
            case _:
                raise ProtocolError(f"a link carries no {type(message).__name__}")

    def forget(self) -> None:
        """The last message was not sent: send rows and counts whole next time."""
        self._rows = self._counts = None

    def _step(self, step: Step) -> list[bytes]:
        n_rows, n_removed, n_blocks = len(step.rows), len(step.removed), len(step.blocks)
        n_copies, n_saves, n_loads = len(step.copies), len(step.saves), len(step.loads)
        flags, columns = self._rows_and_counts(step)
        if n_removed:
            columns.append(_column("removed", step.removed))
        if n_blocks:
            columns.append(_column("blocks", step.blocks, 4))
        if n_copies:
            columns.append(_column("copies", step.copies, 3))
        if n_saves:
            columns.append(_column("saves", step.saves, 2))
        if n_loads:
            columns.append(_column("loads", step.loads, 2))
        if step.added:
            flags |= _HAS_RECORD
            columns.append(pack(_StepRecord(step.added)))
        header = _STEP.pack(
            _STEP_KIND, flags, step.number, step.epoch, n_rows, n_removed, n_blocks, n_copies, n_saves, n_loads
        )  # fmt: skip
        return [header, *columns]

    def _done(self, done: StepDone) -> list[bytes]:
        n_rows, n_tokens, n_drafted, width = len(done.rows), len(done.tokens), len(done.drafted), 0
        flags, columns = self._rows_and_counts(done)
        if n_tokens:
            columns.append(_column("tokens", done.tokens))
        if n_drafted:
            columns.append(_column("drafted", done.drafted))
        if done.logprobs is not None:
            flags |= _HAS_LOGPROBS
            width = _logprob_columns(done.logprobs, n_tokens, columns)
        if done.prompt_logprobs or done.failed or done.pooled or done.late:
            flags |= _HAS_RECORD
            columns.append(pack(_DoneRecord(done.prompt_logprobs, done.failed, done.pooled, done.late)))
        header = _DONE.pack(
            _DONE_KIND, flags, done.number, done.epoch, done.elapsed_us, done.draft_us,
            n_rows, n_tokens, n_drafted, width,
        )  # fmt: skip
        return [header, *columns]

    def _rows_and_counts(self, message: Step | StepDone) -> tuple[int, list[bytes]]:
        rows, counts = _column("rows", message.rows), _column("counts", message.counts)
        if len(rows) != len(counts):
            raise ProtocolError(f"{len(message.rows)} rows with {len(message.counts)} counts; they go in pairs")
        if rows == self._rows and counts == self._counts:
            return _SAME_ROWS, []
        self._rows, self._counts = rows, counts
        return 0, [rows, counts]


class Decoder:
    """One direction's receiver. `accepts`: the message classes that may come in this direction."""

    def __init__(self, accepts: frozenset[type]) -> None:
        self._accepts = accepts
        self._rows = self._counts = EMPTY

    def decode(self, payload: bytes) -> Message:
        """The message; its columns are read-only views of `payload`.

        Rows and counts that did not change are the same arrays as in the last message.
        Errors: `ProtocolError`; the state of this direction is lost then, the link is of no use.
        """
        kind = _KIND.unpack_from(payload)[0] if len(payload) >= _KIND.size else 0
        cls = _CLASSES.get(kind)
        if cls not in self._accepts:
            raise ProtocolError(f"a message of {len(payload)} bytes and kind {kind} does not come this way")
        if cls is Step:
            return self._step(payload)
        if cls is StepDone:
            return self._done(payload)
        message: Message = unpack(cls, payload[_KIND.size :])
        return message

    def _step(self, payload: bytes) -> Step:
        header = _header(_STEP, payload, _SAME_ROWS | _HAS_RECORD)
        _, flags, number, epoch, n_rows, n_removed, n_blocks, n_copies, n_saves, n_loads = header
        n_pairs = 0 if flags & _SAME_ROWS else n_rows
        sizes = (n_pairs, n_pairs, n_removed, n_blocks * 4, n_copies * 3, n_saves * 2, n_loads * 2)
        columns, rest = _cut(payload, _STEP.size, sizes)
        rows, counts = self._rows_and_counts(flags, n_rows, columns)
        return Step(
            number,
            epoch,
            rows,
            counts,
            columns[2],
            unpack(_StepRecord, rest).added if flags & _HAS_RECORD else _nothing(rest),
            columns[3].reshape(-1, 4) if n_blocks else EMPTY_BLOCKS,
            columns[4].reshape(-1, 3) if n_copies else EMPTY_TRIPLES,
            columns[5].reshape(-1, 2) if n_saves else EMPTY_PAIRS,
            columns[6].reshape(-1, 2) if n_loads else EMPTY_PAIRS,
        )

    def _done(self, payload: bytes) -> StepDone:
        header = _header(_DONE, payload, _SAME_ROWS | _HAS_LOGPROBS | _HAS_RECORD)
        _, flags, number, epoch, elapsed_us, draft_us, n_rows, n_tokens, n_drafted, width = header
        n_pairs = 0 if flags & _SAME_ROWS else n_rows
        sizes = [n_pairs, n_pairs, n_tokens, n_drafted]
        if flags & _HAS_LOGPROBS:
            sizes += (n_tokens, n_tokens, n_tokens * width, n_tokens * width)
        columns, rest = _cut(payload, _DONE.size, sizes)
        rows, counts = self._rows_and_counts(flags, n_rows, columns)
        logprobs = None
        if flags & _HAS_LOGPROBS:
            logprobs = Logprobs(
                columns[4].view(_FLOAT32),
                columns[5],
                columns[6].reshape(n_tokens, width),
                columns[7].view(_FLOAT32).reshape(n_tokens, width),
            )
        if flags & _HAS_RECORD:
            record = unpack(_DoneRecord, rest)
        else:
            _nothing(rest)
            record = _NO_RECORD
        return StepDone(
            number,
            epoch,
            rows,
            counts,
            columns[2],
            logprobs,
            record.prompt_logprobs,
            record.failed,
            elapsed_us,
            record.pooled,
            record.late,
            columns[3],
            draft_us,
        )

    def _rows_and_counts(self, flags: int, size: int, columns: list[Int32]) -> tuple[Int32, Int32]:
        if flags & _SAME_ROWS:
            if size != len(self._rows):
                raise ProtocolError(f"the same {size} rows as before, but there were {len(self._rows)}")
        else:
            self._rows, self._counts = _kept(columns[0]), _kept(columns[1])
        return self._rows, self._counts


def _header(layout: struct.Struct, payload: bytes, known_flags: int) -> tuple[Any, ...]:
    if len(payload) < layout.size:
        raise ProtocolError(f"a message of {len(payload)} bytes is shorter than its header of {layout.size}")
    fields = layout.unpack_from(payload)
    if fields[1] & ~known_flags:
        raise ProtocolError(f"unknown flags {fields[1]:#x}; both ends must run the same version")
    return fields


def _cut(payload: bytes, start: int, sizes: Sequence[int]) -> tuple[list[Int32], bytes]:
    """Columns of these sizes, and the bytes behind them. Errors: `ProtocolError` when the payload is too short."""
    total = sum(sizes)
    end = start + 4 * total
    if end > len(payload):
        raise ProtocolError(f"columns of {total} values are longer than their message of {len(payload)} bytes")
    if not total:
        return [EMPTY] * len(sizes), payload[end:]
    words = np.frombuffer(payload, _INT32, total, start)
    columns = []
    at = 0
    for size in sizes:
        columns.append(words[at : at + size] if size else EMPTY)
        at += size
    return columns, payload[end:]


def _nothing(rest: bytes) -> tuple[Any, ...]:
    if rest:
        raise ProtocolError(f"{len(rest)} bytes are left after the message's end")
    return ()


def _kept(column: Int32) -> Int32:
    """A copy to remember, which does not keep a long message alive."""
    if not len(column):
        return EMPTY
    copy = column.copy()
    copy.flags.writeable = False
    return copy


def _column(name: str, column: Int32, width: int = 0) -> bytes:
    """Its bytes. Errors: `ProtocolError` when it is not int32 of [N] (`width` 0) or [N, width]."""
    if column.dtype != _INT32 or column.ndim != (2 if width else 1) or (width and column.shape[1] != width):
        raise ProtocolError(f"{name} must be int32 of {width or 1} columns, found {column.dtype} {column.shape}")
    return column.tobytes()


def _logprob_columns(logprobs: Logprobs, tokens: int, columns: list[bytes]) -> int:
    """Append the four columns; the number of top logprobs a token."""
    width = logprobs.top_ids.shape[-1]
    for name, dtype, shape in (
        ("token_logprobs", _FLOAT32, (tokens,)),
        ("ranks", _INT32, (tokens,)),
        ("top_ids", _INT32, (tokens, width)),
        ("top_logprobs", _FLOAT32, (tokens, width)),
    ):
        column = getattr(logprobs, name)
        if column.dtype != dtype or column.shape != shape:
            raise ProtocolError(f"{name} must be {dtype} {shape}, found {column.dtype} {column.shape}")
        columns.append(column.tobytes())
    return int(width)
