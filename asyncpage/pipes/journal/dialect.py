"""What a journal tells of each message: token ids under pseudonyms, no text, no digest of tokens, no salt.

The recorder writes messages with it, a replay writes today's decisions with it to compare them with the recorded ones,
and reads recorded inputs with it. A digest of a block's tokens would let anybody test guesses about a prompt, so names
of blocks are left out: a replay computes them again from the recorded ids. A grammar is told by the pseudonym of its
digest alone. Floats of log-probabilities and embeddings decide nothing and are left out too, as are prompts that a
decision only passes on: their length or a digest under pseudonyms stands there.

INVARIANT: an input reads back as a message that leads to the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

import asyncpage.messages as messages
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure
from asyncpage.messages import (
    EMPTY,
    NO_PARENT,
    Adapter,
    Admit,
    Answer,
    BlockLabel,
    CacheEvent,
    Constraint,
    End,
    Expect,
    Int32,
    Logprobs,
    NewRow,
    Pooled,
    Prefix,
    PromptLogprobs,
    Released,
    RequestOptions,
    Reserve,
    StepDone,
    StepTokens,
    Stored,
    Touch,
)
from asyncpage.pipes.journal.pseudonym import Names
from asyncpage.pipes.record import Dialect, Plain

MESSAGES: Mapping[str, type] = {
    name: cls for name, cls in vars(messages).items() if isinstance(cls, type) and is_dataclass(cls)
}
"""Every message by the name it is recorded under: nothing else can be read out of a journal."""

_INT32 = np.dtype(np.int32)
_NO_FLOATS = ("<f4", (0,), b"")
_NO_INTS = ("<i4", (0,), b"")
_NO_LOGPROBS = (_NO_FLOATS, _NO_INTS, ("<i4", (0, 0), b""), ("<f4", (0, 0), b""))


def shapes() -> dict[str, tuple[str, ...]]:
    """The fields of every class that today's journals hold, for readers of a later version."""
    classes = (*MESSAGES.values(), Failure)
    return {cls.__name__: tuple(field.name for field in fields(cls)) for cls in classes}


def journal_dialect(names: Names, shapes: Mapping[str, tuple[str, ...]] | None = None) -> Dialect:
    """How a journal's records are written (with `names`), and read (as `shapes` says)."""

    last: tuple[Int32, Any] = EMPTY, _NO_INTS

    def column(ids: Int32) -> Any:
        nonlocal last  # what a step brought is passed on in the very column
        if ids is not last[0]:
            last = ids, _ints(names.of_column(ids))
        return last[1]

    def sampling(value: SamplingParams) -> Any:
        given = value.to_wire()
        plain: dict[str, Any] = {field: item for field, item in given.items() if isinstance(item, int | float)}
        for field in ("stop_token_ids", "allowed_token_ids"):
            if given.get(field):
                plain[field] = names.of_ids(given[field])
        if "logit_bias" in given:
            ids, biases = zip(*given["logit_bias"], strict=True)
            plain["logit_bias"] = tuple(zip(names.of_ids(ids), biases, strict=True))
        return plain

    def sequences(value: Any) -> Any:
        return [names.of_ids(ids) for ids in value]

    def digest(tokens: bytes) -> bytes:
        return blake2b(names.of_bytes(tokens), digest_size=8).digest()

    def prefix(value: Prefix) -> Any:
        return len(value.tokens) // 4

    def keys(value: Any) -> Any:
        return [names.of_digest(key[:-1]) + key[-1:] for key in value]  # a name and a group

    def optional_id(value: int | None) -> Any:
        return None if value is None else names.of_ids((value,))[0]

    writers: dict[Any, Plain] = {
        Int32: _ints,
        SamplingParams: sampling,
        Prefix: prefix,
        Constraint: lambda value: (bytes.fromhex(names.of_word(value.digest.hex())), b""),
        Logprobs: lambda value: _NO_LOGPROBS,
        (RequestOptions, "cache_salt"): names.of_word,
        (Adapter, "folder"): lambda value: "",
        (Admit, "tokens"): names.of_bytes,
        (Admit, "names"): lambda value: (b"",) * len(value),
        (Admit, "bad_word_ids"): sequences,
        (NewRow, "tokens"): digest,
        (NewRow, "end_token_ids"): names.of_ids,
        (NewRow, "bad_word_ids"): sequences,
        (StepDone, "tokens"): column,
        (StepDone, "logprobs"): _nothing,
        (Pooled, "embedding"): _no_bytes,
        (PromptLogprobs, "tokens"): column,
        (Expect, "echo"): _no_bytes,
        (End, "stop_token"): optional_id,
        (End, "embedding"): _no_bytes,
        (StepTokens, "requests"): _Requests(),
        (StepTokens, "tokens"): column,
        (StepTokens, "logprobs"): _nothing,
        (Reserve, "filled_tokens"): column,
        (Released, "tail"): names.of_bytes,
        (Answer, "value"): lambda value: value if isinstance(value, int) else None,
        CacheEvent: lambda event: (event.kind, event.medium, len(event.tokens) // 4),
        (BlockLabel, "name"): names.of_digest,
        (BlockLabel, "parent"): lambda value: value if value == NO_PARENT else names.of_digest(value),
        (BlockLabel, "tokens"): names.of_bytes,
        (BlockLabel, "proof"): _no_bytes,
        (Stored, "removed"): keys,
        (Touch, "keys"): keys,
    }
    return Dialect(writers, shapes)


class _Requests:
    """Requests as a column: in steady decode the very tuple of the step before, whose bytes are there already."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()
        self._column = ("<i8", (0,), b"")

    def __call__(self, requests: tuple[int, ...]) -> Any:
        if requests is not self._last:
            self._last, self._column = requests, ("<i8", (len(requests),), np.array(requests, dtype="<i8").tobytes())
        return self._column


def _ints(column: Int32) -> Any:
    if column.dtype is not _INT32:  # nearly always the one object, and its name takes longer than its bytes
        return column.dtype.str, column.shape, column.tobytes()
    return "<i4", column.shape, column.tobytes()


def _nothing(value: object) -> None:
    return None


def _no_bytes(value: object) -> bytes:
    return b""
