"""Characters in all their cases, for regular expressions that ignore case.

INVARIANT: a set that is closed holds, with a letter, its simple lower and upper case.
"""

from __future__ import annotations

from functools import lru_cache

from asyncpage.grammar.charset import CharSet, charset

_LAST_CASED = 0x1E943  # the last letter that has two cases


@lru_cache(maxsize=1)
def _pairs() -> tuple[tuple[int, int], ...]:
    """(upper, lower) of every letter with one of each."""
    pairs = []
    for point in range(_LAST_CASED + 1):
        char = chr(point)
        lower = char.lower()
        if lower != char and len(lower) == 1 and lower.upper() == char:
            pairs.append((point, ord(lower)))
    return tuple(pairs)


def case_closed(chars: CharSet) -> CharSet:
    """The set with the other case of each of its letters."""
    more = []
    for upper, lower in _pairs():
        if upper in chars:
            more.append((lower, lower))
        if lower in chars:
            more.append((upper, upper))
    return charset((*chars.ranges, *more)) if more else chars
