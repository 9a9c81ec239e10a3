"""Words that all messages share: request ids, columns, log-probabilities."""

from __future__ import annotations

from typing import Literal, NewType

import numpy as np
from numpy.typing import NDArray

from asyncpage.records import record

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

RequestId = NewType("RequestId", int)
"""One choice of one prompt. The top bits name the front end that waits for it, so an answer finds its way."""

FRONTEND_SHIFT = 48

FinishReason = Literal["stop", "length", "abort", "error"]

EMPTY: Int32 = np.empty(0, dtype=np.int32)
EMPTY.flags.writeable = False
EMPTY_BLOCKS: Int32 = np.empty((0, 4), dtype=np.int32)
EMPTY_BLOCKS.flags.writeable = False
EMPTY_PAIRS: Int32 = np.empty((0, 2), dtype=np.int32)
EMPTY_PAIRS.flags.writeable = False
EMPTY_TRIPLES: Int32 = np.empty((0, 3), dtype=np.int32)
EMPTY_TRIPLES.flags.writeable = False


def frontend_of(request: RequestId) -> int:
    """The index of the front end that waits for this request."""
    return request >> FRONTEND_SHIFT


@record(frozen=True, slots=True)
class Constraint:
    """A compiled grammar that every token of an answer must follow.

    `digest`: 16 bytes that name it. `compiled`: bytes that the grammar backend made and reads, or the built-in one (a
    `grammar.network.Network`); an executor is sent them once.
    """

    digest: bytes
    compiled: bytes

    @property
    def name(self) -> Constraint:
        """The name alone, for whoever has that already or must not keep it."""
        return Constraint(self.digest, b"")


@record(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter, as it was when it was checked.

    `identity`: the digest of its files, 64 hexadecimal digits: equal ones compute the same. `folder`: where executors
    read them, and find out whether they are still the same.
    """

    identity: str
    folder: str


@record(frozen=True, slots=True)
class Pooling:
    """How a prompt's hidden states, after the last norm, become one vector.

    `kind`: the last token's state, the mean over all tokens, or the first token's (`cls`, of use where every token sees
    all others). `is_normalized`: the vector is brought to length 1.
    """

    kind: Literal["last", "mean", "cls"]
    is_normalized: bool = True


@record(frozen=True, slots=True)
class Prefix:
    """What a request brings to the prefix index.

    `root`: a tagged, length-prefixed key of block size, adapter and salt; only equal ones may share. `tokens`: int32
    little-endian, everything known. `names`: the hash chain of its full blocks as far as known (32 bytes each).
    """

    root: bytes
    tokens: bytes
    names: tuple[bytes, ...]


@record(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-probabilities before any sampling change, one entry a token position.

    `token_logprobs`, `ranks`: [P] of the chosen token (rank 1 is the most likely).
    `top_ids`, `top_logprobs`: [P, K] the K most likely, best first, ties to the lowest id.
    """

    token_logprobs: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32


@record(frozen=True, slots=True, eq=False)
class PromptLogprobs:
    """Log-probabilities of prompt tokens `start` .. `start + P` of one row (the token at 0 has none).

    A prompt that is computed again after a preemption is told again; the detokenizer drops what it has told.
    """

    row: int
    start: int
    tokens: Int32
    logprobs: Logprobs
