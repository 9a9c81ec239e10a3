"""A regular expression for any of many texts, as a tree of what they have in common.

The finder of added tokens and the guard of control tokens search with it: thousands of texts side by side would be
tried one after the other wherever one could begin.

INVARIANT: it matches the longest of the texts that are at a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby


def any_of(texts: Iterable[str]) -> str:
    """The expression, one group. `texts`: at least one, none empty."""
    return _tree(sorted(set(texts)))


def _tree(texts: Sequence[str]) -> str:
    """`texts` in order; if the first one is empty, the text before all of them may end here."""
    may_end = not texts[0]
    branches = []
    for _, members in groupby(texts[may_end:], key=lambda text: text[0]):
        group = list(members)
        head = _common(group[0], group[-1])
        rest = _tree([text[len(head) :] for text in group]) if len(group) > 1 else ""
        branches.append(re.escape(head) + rest)
    return f"(?:{'|'.join(branches)}){'?' if may_end else ''}"


def _common(first: str, last: str) -> str:
    """What both begin with, and with them all that is between them in order."""
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return min(first, last, key=len)
