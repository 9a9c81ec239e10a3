"""Errors in a client's own words: fields that are read in the form of chat completions, and named in another API's.

The body readers of other APIs convert their fields and read them here, so that there is one reader of each.

INVARIANT: only the name of the field at fault changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from asyncpage.errors import RequestError

Renaming = tuple[str, str]
"""A pattern at the beginning of a dotted path, and what stands there for the client."""


@contextmanager
def renamed(names: Sequence[Renaming]) -> Iterator[None]:
    """A `RequestError` raised inside has its `param` renamed by the first of `names` that fits, in its text too."""
    try:
        yield
    except RequestError as error:
        failure = error.failure
        old = failure.param
        new = rename(old, names) if old else None
        if not old or not new or old == new:
            raise
        raise RequestError(
            # The name as a word of its own: what the client sent may hold the same letters.
            re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", lambda _: new, failure.message),
            status=failure.status,
            code=failure.code,
            param=new,
            retry_after_s=failure.retry_after_s,
        ) from None


def rename(path: str, names: Sequence[Renaming]) -> str:
    """`path` with the first of `names` that fits its beginning, whole segments only."""
    for pattern, own in names:
        found = re.match(rf"{pattern}(?=\.|$)", path)
        if found is not None:
            return found.expand(own) + path[found.end() :]
    return path
