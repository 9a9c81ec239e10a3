"""Byte-level BPE: a piece of text begins as its bytes.

The tokenizer gives it pieces, `pair_merges` does the merging.

INVARIANT: a byte without a token of its own becomes the unknown token, or nothing where there is none.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from asyncpage.errors import ModelError
from asyncpage.text.byte_alphabet import CHARACTERS, spell
from asyncpage.text.pair_merges import PairMerges, RankedPair
from asyncpage.text.vocabulary import Vocabulary

PORTION_BYTES = 4096  # of looking up, about 0.15 ms


class BytePairEncoder:
    """The merges of one byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary, ids: dict[str, int]) -> None:
        """`ids`: the id of each text of the vocabulary. Errors: `ModelError` for a merge of unknown tokens."""
        self._whole = ids if vocabulary.ignore_merges else {}
        self._longest = max(map(len, self._whole), default=0)  # in bytes: the spelling has a character for each
        unknown = vocabulary.unknown_id
        self._fused_unknown = unknown if vocabulary.fuse_unknown else None
        # Bytes without a token are dropped where there is no unknown token, as the models' own tokenizers do.
        self._byte_ids = [ids.get(character, unknown) for character in CHARACTERS]
        self._merges = PairMerges(len(vocabulary.tokens), ranked_pairs(vocabulary, ids))

    def encode(self, data: bytes) -> tuple[int, ...]:
        """The ids of a short piece."""
        if len(data) <= self._longest and (whole := self._whole.get(spell(data))) is not None:
            return (whole,)
        return self._merges.merge(self._symbols(data))

    def encode_in_portions(self, data: bytes, ids: list[int]) -> Iterator[None]:
        """Append the ids of a long piece to `ids`, yielding between portions of work."""
        if len(data) <= self._longest and (whole := self._whole.get(spell(data))) is not None:
            ids.append(whole)
            return
        symbols = array("i")
        for start in range(0, len(data), PORTION_BYTES):
            more = self._symbols(data[start : start + PORTION_BYTES])
            is_fused = symbols and more and symbols[-1] == more[0] == self._fused_unknown
            symbols.extend(more[1:] if is_fused else more)
            yield
        yield from self._merges.merge_in_portions(symbols, ids)

    def _symbols(self, data: bytes) -> list[int]:
        """The ids that merging begins with, one a byte."""
        byte_ids = self._byte_ids
        symbols = [id for byte in data if (id := byte_ids[byte]) is not None]
        unknown = self._fused_unknown
        if unknown is not None and unknown in symbols:
            symbols = [id for i, id in enumerate(symbols) if id != unknown or not i or symbols[i - 1] != unknown]
        return symbols


def ranked_pairs(vocabulary: Vocabulary, ids: dict[str, int]) -> Iterator[RankedPair]:
    """The merges that a vocabulary lists, the first is the most urgent. Errors: `ModelError` for unknown tokens."""
    try:
        for rank, (left, right) in enumerate(vocabulary.merges()):
            yield rank, ids[left], ids[right], ids[left + right]
    except KeyError as error:
        raise ModelError(
            f"{vocabulary.source}: a merge needs the token {error.args[0]!r}, which the vocabulary lacks"
        ) from None
