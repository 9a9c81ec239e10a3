"""How characters are written as bytes: UTF-8, and UTF-8 inside a JSON string.

`writing` asks it for the bytes of a set of characters, as a tree of byte ranges that shares its equal tails.

INVARIANT: from a node of a tree, every byte leads one way at most, and what a tree spells are exactly the characters
of its set, each in at most one way.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from asyncpage.grammar.charset import ANY, CharSet, Range, charset, one_of


class ByteTree:
    """Ways on: lowest byte, highest byte, and the tree of what follows, None where the character ends.

    Equal trees are equal values. A tree's hash is that of its trees', and is taken once: written as nested tuples,
    a tree that shares its tails would be hashed along every way through it.
    """

    __slots__ = ("__dict__", "_hash", "ways")

    def __init__(self, *ways: tuple[int, int, ByteTree | None]) -> None:
        self.ways = ways
        self._hash = hash(ways)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ByteTree) and self.ways == other.ways)

    @cached_property
    def long(self) -> ByteTree:
        """The part that spells characters of several bytes."""
        return ByteTree(*(way for way in self.ways if way[2] is not None))

    @cached_property
    def size(self) -> int:
        """States between its ends."""
        inner: set[ByteTree] = set()
        waiting = [self]
        while waiting:
            for _, _, rest in waiting.pop().ways:
                if rest is not None and rest not in inner:
                    inner.add(rest)
                    waiting.append(rest)
        return len(inner)


# (first and last code point, bytes after the lead, lead's marker): RFC 3629, section 3.
_LENGTHS = ((0x00, 0x7F, 0, 0x00), (0x80, 0x7FF, 1, 0xC0), (0x800, 0xFFFF, 2, 0xE0), (0x10000, 0x10FFFF, 3, 0xF0))
_TRAIL_BITS, _TRAIL = 6, 0x80

# RFC 8259, section 7: what must be escaped in a string, and the short forms that there are.
_MUST_ESCAPE = charset([(0x00, 0x1F)]) | one_of('"\\')
_SHORT = {0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}


@lru_cache(maxsize=1024)
def utf8(chars: CharSet) -> ByteTree:
    """The characters in UTF-8."""
    ways: list[tuple[int, int, ByteTree | None]] = []
    for first, last, trail, marker in _LENGTHS:
        ranges = (chars & CharSet(((first, last),))).ranges
        ways += [(marker + low, marker + high, tree) for low, high, tree in _digits(ranges, trail).ways]
    return ByteTree(*ways)


@lru_cache(maxsize=1024)
def json_string(chars: CharSet) -> ByteTree:
    """The characters as a JSON string has them: each as itself where it may be, else in its shortest escape."""
    ways = utf8(chars - _MUST_ESCAPE).ways
    escapes = [_SHORT.get(point, b"u%04x" % point) for low, high in (chars & _MUST_ESCAPE).ranges
               for point in range(low, high + 1)]  # fmt: skip
    return ByteTree(*ways, (0x5C, 0x5C, _words(escapes))) if escapes else ByteTree(*ways)


def json_string_freely() -> ByteTree:
    """Any character in any way that a JSON string may have it; a pair of surrogates is one character."""
    rest = _hex(2)
    after_low_d = ByteTree((0x43, 0x46, rest), (0x63, 0x66, rest))
    low_surrogate = ByteTree((0x44, 0x44, after_low_d), (0x64, 0x64, after_low_d))
    pair = _hex(2, ByteTree((0x5C, 0x5C, ByteTree((0x75, 0x75, low_surrogate)))))
    after_d = ByteTree((0x30, 0x37, rest), (0x38, 0x39, pair), (0x41, 0x42, pair), (0x61, 0x62, pair))
    others = _hex(3)
    after_u = ByteTree(
        (0x30, 0x39, others), (0x41, 0x43, others), (0x44, 0x44, after_d), (0x45, 0x46, others),
        (0x61, 0x63, others), (0x64, 0x64, after_d), (0x65, 0x66, others),
    )  # fmt: skip
    escapes = ByteTree(*((byte, byte, None) for byte in sorted(b'"\\/bfnrt')), (0x75, 0x75, after_u))
    return ByteTree(*utf8(ANY - _MUST_ESCAPE).ways, (0x5C, 0x5C, escapes))


def _hex(digits: int, then: ByteTree | None = None) -> ByteTree | None:
    for _ in range(digits):
        then = ByteTree((0x30, 0x39, then), (0x41, 0x46, then), (0x61, 0x66, then))
    return then


def _digits(ranges: tuple[Range, ...], trail: int) -> ByteTree:
    """Numbers in digits of six bits: a lead, whatever its size, and `trail` more, each a byte of 0x80 to 0xBF."""
    if trail == 0:
        return ByteTree(*((low, high, None) for low, high in ranges))
    size = 1 << (_TRAIL_BITS * trail)
    rests: dict[int, list[Range]] = {}
    runs: list[tuple[int, int, tuple[Range, ...]]] = []
    for low, high in ranges:
        first, last = low // size, high // size
        if first == last:
            rests.setdefault(first, []).append((low % size, high % size))
            continue
        rests.setdefault(first, []).append((low % size, size - 1))
        rests.setdefault(last, []).append((0, high % size))
        if first + 1 < last:
            runs.append((first + 1, last - 1, ((0, size - 1),)))
    runs += [(lead, lead, tuple(rest)) for lead, rest in rests.items()]
    ways: list[tuple[int, int, tuple[Range, ...]]] = []
    for low, high, rest in sorted(runs):
        if ways and ways[-1][1] + 1 == low and ways[-1][2] == rest:
            ways[-1] = (ways[-1][0], high, rest)
        else:
            ways.append((low, high, rest))
    return ByteTree(*((low, high, _trail(rest, trail)) for low, high, rest in ways))


@lru_cache(maxsize=1024)
def _trail(ranges: tuple[Range, ...], trail: int) -> ByteTree:
    digits = _digits(ranges, trail - 1)
    return ByteTree(*((_TRAIL + low, _TRAIL + high, tree) for low, high, tree in digits.ways))


def _words(words: list[bytes]) -> ByteTree:
    """These words, of which none begins another."""
    by_first: dict[int, list[bytes]] = {}
    for word in words:
        by_first.setdefault(word[0], []).append(word[1:])
    return ByteTree(
        *((first, first, _words(rests) if rests != [b""] else None) for first, rests in sorted(by_first.items()))
    )
