"""Byte-pair merging of one piece of text, by ids.

The tokenizer gives it pieces. Short pieces are merged by scanning a short list, long ones by a heap, in portions.

INVARIANT: both ways give what the definition gives: while some neighbours can be merged, merge the most urgent
pair, the leftmost of equals.

Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016, on bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise

from asyncpage.errors import ModelError
from asyncpage.text.byte_alphabet import CHARACTERS, spell
from asyncpage.text.vocabulary import Vocabulary

SHORT_BYTES = 48
"""Up to here scanning for the minimum is faster than a heap (measured)."""

PORTION_STEPS = 128  # of merging a long piece, about 0.15 ms
PORTION_BYTES = 4096  # of looking up or copying, about as long

_NEVER = 1 << 62
_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1


class BytePairEncoder:
    """The merges of one vocabulary.

    `_merges` maps a pair of ids, packed into one integer, to its rank and the merged id, packed likewise: the
    smallest value is the most urgent merge, and one dictionary look-up answers both questions.
    """

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        """`ids`: the id of each text of the vocabulary. Errors: `ModelError` for a merge of unknown tokens."""
        self._shift = max(len(vocabulary.tokens), 2).bit_length()
        self._mask = (1 << self._shift) - 1
        self._whole = ids if vocabulary.ignore_merges else {}
        self._longest = max(map(len, self._whole), default=0)  # in bytes: the spelling has a character for each
        unknown = vocabulary.unknown_id
        self._fused_unknown = unknown if vocabulary.fuse_unknown else None
        # Bytes without a token are dropped where there is no unknown token, as the models' own tokenizers do.
        self._byte_ids = [ids.get(character, unknown) for character in CHARACTERS]
        self._merges = self._pack(vocabulary, ids)

    def encode(self, data: bytes) -> tuple[int, ...]:
        """The ids of a short piece; quadratic in its length, with a tiny constant."""
        if len(data) <= self._longest and (whole := self._whole.get(spell(data))) is not None:
            return (whole,)
        symbols = self._symbols(data)
        find, shift, mask = self._merges.get, self._shift, self._mask
        values = [find(left << shift | right, _NEVER) for left, right in pairwise(symbols)]
        while values:
            value = min(values)
            if value == _NEVER:
                break
            at = values.index(value)
            merged = value & mask
            symbols[at : at + 2] = (merged,)
            del values[at]
            if at < len(values):
                values[at] = find(merged << shift | symbols[at + 1], _NEVER)
            if at:
                values[at - 1] = find(symbols[at - 1] << shift | merged, _NEVER)
        return tuple(symbols)

    def encode_in_portions(self, data: bytes, ids: list[int]) -> Iterator[None]:
        """Append the ids of a long piece to `ids`, yielding between portions of work; n log n for n bytes.

        The symbols form a linked list; a heap holds candidate merges, of which stale ones are skipped. All of it is
        plain numbers, in arrays where it can be: objects by the hundred thousand would make the collector stop the
        loop for tens of milliseconds.
        """
        if len(data) <= self._longest and (whole := self._whole.get(spell(data))) is not None:
            ids.append(whole)
            return
        find, shift, mask = self._merges.get, self._shift, self._mask
        symbols = array("i")
        for start in range(0, len(data), PORTION_BYTES):
            symbols.extend(self._symbols(data[start : start + PORTION_BYTES]))
            yield
        end = len(symbols)
        after, before = array("i"), array("i")
        heap: list[int] = []
        for at in range(end):
            after.append(at + 1)
            before.append(at - 1)
            value = find(symbols[at - 1] << shift | symbols[at]) if at else None
            if value is not None:
                heappush(heap, value << _PLACE_BITS | at - 1)
            if not at % PORTION_STEPS:
                yield
        steps = 0
        while heap:
            steps += 1
            if not steps % PORTION_STEPS:
                yield
            entry = heappop(heap)
            value, at = entry >> _PLACE_BITS, entry & _PLACE_MASK
            right = after[at]
            # A symbol that was swallowed is -1, which makes the pair a key that no merge has.
            if right == end or symbols[at] < 0 or find(symbols[at] << shift | symbols[right]) != value:
                continue
            merged = value & mask
            symbols[at], symbols[right] = merged, -1
            after[at] = beyond = after[right]
            if beyond < end:
                before[beyond] = at
                new = find(merged << shift | symbols[beyond])
                if new is not None:
                    heappush(heap, new << _PLACE_BITS | at)
            left = before[at]
            if left >= 0:
                new = find(symbols[left] << shift | merged)
                if new is not None:
                    heappush(heap, new << _PLACE_BITS | left)
        for start in range(0, end, PORTION_BYTES):
            ids += [id for id in symbols[start : start + PORTION_BYTES] if id >= 0]
            yield

    def _symbols(self, data: bytes) -> list[int]:
        """The ids that merging begins with, one a byte."""
        byte_ids = self._byte_ids
        symbols = [id for byte in data if (id := byte_ids[byte]) is not None]
        unknown = self._fused_unknown
        if unknown is not None and unknown in symbols:
            symbols = [id for i, id in enumerate(symbols) if id != unknown or not i or symbols[i - 1] != unknown]
        return symbols

    def _pack(self, vocabulary: Vocabulary, ids: dict[str, int]) -> dict[int, int]:
        shift = self._shift
        merges: dict[int, int] = {}
        try:
            for rank, (left, right) in enumerate(vocabulary.merges()):
                merges[ids[left] << shift | ids[right]] = rank << shift | ids[left + right]
        except KeyError as error:
            raise ModelError(
                f"{vocabulary.source}: a merge needs the token {error.args[0]!r}, which the vocabulary lacks"
            ) from None
        return merges
