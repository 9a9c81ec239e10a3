"""The errors of a compilation: what is wrong with a grammar, and where in it.

Every compiler raises them; the server prefixes `param` with the field that brought the grammar.

INVARIANT: `param` is the dotted path inside the grammar, "" for the whole, and no text holds what the client sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.errors import RequestError


def invalid(message: str, path: Sequence[str] = ()) -> RequestError:
    """A grammar that is malformed, or that no text can match."""
    return RequestError(message, code="invalid_grammar", param=".".join(path))


def unsupported(message: str, path: Sequence[str] = ()) -> RequestError:
    """A grammar that is well-formed, and asks for what this compiler cannot enforce."""
    return RequestError(message, code="unsupported", param=".".join(path))


def too_large(message: str, path: Sequence[str] = ()) -> RequestError:
    """A grammar past one of the limits; the message names the limit."""
    return RequestError(message, code="grammar_too_large", param=".".join(path))
