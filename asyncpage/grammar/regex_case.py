"""Characters in all their cases, for regular expressions that ignore case.

INVARIANT: a narrow set holds what every dialect takes for a letter's other case; a wide one all that some dialect does.
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


@lru_cache(maxsize=1)
def _kin() -> tuple[tuple[int, ...], ...]:
    """Letters that are one another's case in some way: I and all small forms of it, K and the Kelvin sign."""
    kin: dict[str, list[int]] = {}
    for point in range(_LAST_CASED + 1):
        char = chr(point)
        if char.lower() != char or char.upper() != char:
            kin.setdefault(char.lower()[0].upper()[0].lower()[0], []).append(point)
    return tuple(tuple(members) for members in kin.values() if len(members) > 1)


def case_closed(chars: CharSet, *, is_wide: bool) -> CharSet:
    """The set with the other cases of its letters."""
    more: list[int] = []
    if is_wide:
        for members in _kin():
            if any(member in chars for member in members):
                more += members
    else:
        for upper, lower in _pairs():
            if upper in chars:
                more.append(lower)
            if lower in chars:
                more.append(upper)
    return charset((*chars.ranges, *((point, point) for point in more))) if more else chars
