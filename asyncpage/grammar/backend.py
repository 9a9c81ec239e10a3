"""The contract of a grammar backend: what compiles a grammar, and what says which tokens may come next.

A backend is one class, found by entry point (`backend_registry.py`) and made without arguments. The compile worker
calls `compile`, with nothing but the grammar; the executor calls `reader` once, in the thread that makes its masks,
and opens what was compiled. Both ends have the same backend, so what travels between them is the backend's own.

The worker's memory and time are limited from outside; the executor's are not, and every answer that follows a grammar
waits for the mask under way. So whatever a backend does there it bounds itself, by `GrammarLimit`, and it tells what
its grammars take, of which the executor keeps a bounded amount.

INVARIANT: `advance` takes every token that has a bit in the mask, and a mask is empty only where an answer must end or
cannot go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncpage.errors import AsyncpageError
from asyncpage.grammar.source import GrammarSource

API = 1

Bits = NDArray[np.uint8]
"""A bit a token of the vocabulary, the lowest first, in as few bytes as hold them; bits behind the last are 0."""


class GrammarLimit(AsyncpageError):
    """A grammar asks for more than a walk may take; only the request that brought it fails."""


class Follower(Protocol):
    """One answer's way through a grammar. Errors of all: `GrammarLimit`, which ends it."""

    def advance(self, token: int) -> bool:
        """The answer goes on with this token; False where the grammar does not allow it, and then nothing else."""
        ...

    def mask(self) -> Bits:
        """The tokens that may come next, end tokens aside; nobody writes into it."""
        ...

    def may_end(self) -> bool:
        """Whether the answer may be over here."""
        ...


class Grammar(Protocol):
    """A compiled grammar over a vocabulary, for any number of answers. It can be a weak reference's target."""

    @property
    def size_bytes(self) -> int:
        """What it and the answers on their way through it take at this moment, about, as far as that can be known."""
        ...

    def begin(self) -> Follower:
        """The way of an answer that says nothing yet. Errors: `GrammarLimit`."""
        ...


class Reader(Protocol):
    """Everything over one vocabulary. One thread calls it and all that it makes."""

    def open(self, compiled: bytes) -> Grammar:
        """Errors: `ProtocolError` for bytes that its backend has not compiled, `GrammarLimit`."""
        ...


class GrammarBackend(Protocol):
    """`name`: what `--grammar-backend` calls it. `api`: the version of this contract that it was written for."""

    name: str
    api: int

    def missing(self) -> str:
        """What to install before it can be used, for `pip install`; "" when all is there. Nothing is imported."""
        ...

    def compile(self, source: GrammarSource) -> bytes:
        """Errors: `RequestError` 400, whose `param` is the place in a schema, for what is wrong or not supported."""
        ...

    def reader(self, token_bytes: Sequence[bytes], vocab_size: int) -> Reader:
        """`token_bytes`: by id, b"" for those that no grammar allows; there are `vocab_size` ids, or fewer texts.

        Those of control tokens are as `grammar.control` has them, which no text matches.
        """
        ...
