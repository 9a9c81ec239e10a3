"""SentencePiece's kind of BPE: a space is U+2581, a piece begins as its characters, and a character without a token as
its bytes.

The tokenizer normalises, cuts and encodes with it; `pair_merges` does the merging.

INVARIANT: texts are cut only where no merge could join what lies on both sides, so the ids are those of the text taken
as a whole.

Sources: Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer", 2018; the rules of
the `tokenizers` library for files that list merges.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from operator import concat, itemgetter

import regex

from asyncpage.text import pieces
from asyncpage.text.bpe import ranked_pairs
from asyncpage.text.pair_merges import PairMerges, RankedPair
from asyncpage.text.sentence_piece_rules import SPACE, SentencePieceRules
from asyncpage.text.vocabulary import Vocabulary

LONG_CHARACTERS = 32  # words up to here are worth keeping whole: they come again
FAR_CHARACTERS = 2048  # after so many without a place to cut at there will be none, and others have to have their turn
PORTION_CHARACTERS = 2048  # of looking up, about 0.15 ms


class SentencePieceEncoder:
    """The merges of one vocabulary, and where texts can be cut that are merged by them."""

    def __init__(self, vocabulary: Vocabulary, rules: SentencePieceRules, ids: dict[str, int]) -> None:
        """`ids`: the id of each text of the vocabulary. Errors: `ModelError` for a merge of unknown tokens."""
        self._ids = ids
        self._longest = max(map(len, ids), default=0) if vocabulary.ignore_merges else 0  # token that is taken whole
        self._unknown, self._fuses = vocabulary.unknown_id, vocabulary.fuse_unknown
        self._byte_ids = [ids.get(f"<0x{byte:02X}>") if rules.falls_back else None for byte in range(256)]
        self._bridges: set[str] = set()  # two characters that some merge joins, the last on its left and the first
        has_scores = rules.scores is not None
        pairs = _scored_pairs(ids, rules.scores) if rules.scores is not None else ranked_pairs(vocabulary, ids)
        has_bytes = None not in self._byte_ids
        # Without unknown tokens, what lies on both sides of an unknown character becomes neighbours.
        self._can_cut = not vocabulary.ignore_merges and SPACE in ids and (has_bytes or self._unknown is not None)
        self._cuts_words = has_bytes  # neighbours that are unknown can become one token
        watched = self._watched(vocabulary.tokens, pairs)
        self._merges = PairMerges(len(vocabulary.tokens), watched, has_ties=has_scores)
        self._find_words = regex.compile(self._pattern()).finditer

    def cut(self, text: str) -> Iterator[str]:
        """The pieces of normalised text: words, and of long ones the parts that no merge joins."""
        for word in map(itemgetter(0), self._find_words(text)):
            if len(word) <= LONG_CHARACTERS or not (self._can_cut and self._cuts_words):
                yield word
                continue
            start, bridges = 0, self._bridges
            for at, pair in enumerate(map(concat, word, word[1:]), 1):
                if pair not in bridges:
                    yield word[start:at]
                    start = at
                elif at - start > FAR_CHARACTERS:
                    break
            yield word[start:]

    def encode(self, data: bytes) -> tuple[int, ...]:
        """The ids of a short piece."""
        text = data.decode()
        if len(text) <= self._longest and (whole := self._ids.get(text)) is not None:
            return (whole,)
        symbols: list[int] = []
        if self._spell(text, symbols, False) and self._unknown is not None:
            symbols.append(self._unknown)
        return self._merges.merge(symbols)

    def encode_in_portions(self, data: bytes, ids: list[int]) -> Iterator[None]:
        """Append the ids of a long piece to `ids`, yielding between portions of work."""
        text = data.decode()
        if len(text) <= self._longest and (whole := self._ids.get(text)) is not None:
            ids.append(whole)
            return
        symbols = array("i")
        waits = False
        for start in range(0, len(text), PORTION_CHARACTERS):
            waits = self._spell(text[start : start + PORTION_CHARACTERS], symbols, waits)
            yield
        if waits and self._unknown is not None:
            symbols.append(self._unknown)
        yield from self._merges.merge_in_portions(symbols, ids)

    def _spell(self, text: str, symbols: MutableSequence[int], waits: bool) -> bool:
        """Append the ids that merging begins with; whether an unknown token is still to be written, as before.

        It is written when a known character or another unknown one comes: bytes go before it.
        """
        find = self._ids.get
        found = [find(character) for character in text]
        if None not in found and not waits:
            symbols.extend(found)  # type: ignore[arg-type]  # there is no None in it
            return False
        unknown = self._unknown
        for character, id in zip(text, found, strict=True):
            if id is not None:
                if waits and unknown is not None:
                    symbols.append(unknown)
                waits = False
                symbols.append(id)
                continue
            bytes_ = [self._byte_ids[byte] for byte in character.encode()]
            if None not in bytes_:
                symbols.extend(bytes_)  # type: ignore[arg-type]
            elif unknown is not None:
                if waits and not self._fuses:
                    symbols.append(unknown)
                waits = True
        return waits

    def _watched(self, tokens: Sequence[str], pairs: Iterable[RankedPair]) -> Iterator[RankedPair]:
        """The same pairs; which characters they join is written down on the way."""
        odd = {self._unknown, *self._byte_ids}  # they stand for other characters than they show
        for pair in pairs:
            self._bridges.add(tokens[pair[1]][-1] + tokens[pair[2]][0])
            if pair[1] in odd or pair[2] in odd:
                self._can_cut = False
            yield pair

    def _pattern(self) -> str:
        """Cuts before runs of U+2581, but behind no character that a token with an inner one has there."""
        if not self._can_cut:
            return pieces.WHOLE
        before = "".join(sorted(pair[0] for pair in self._bridges if pair[1] == SPACE != pair[0]))
        if not before:
            return f"{SPACE}++[^{SPACE}]*+|[^{SPACE}]++"
        return f"{SPACE}*+(?:[^{SPACE}]++|(?<=[{re.escape(before)}]){SPACE}++)++|{SPACE}++"


def _scored_pairs(ids: Mapping[str, int], scores: Sequence[float | None]) -> Iterator[RankedPair]:
    """Every pair of tokens that makes one that has a score, the highest first; ranks are equal where scores are."""
    ranks = {score: rank for rank, score in enumerate(sorted({s for s in scores if s is not None}, reverse=True))}
    parts = {text: id for text, id in ids.items() if scores[id] is not None}
    for text, merged in parts.items():
        score = scores[merged]
        assert score is not None
        for cut in range(1, len(text)):
            if (left := parts.get(text[:cut])) is not None and (right := parts.get(text[cut:])) is not None:
                yield ranks[score], left, right, merged
