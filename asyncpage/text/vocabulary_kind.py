"""The kinds of vocabulary, each as the steps that a tokenizer takes with it.

The tokenizer asks for its vocabulary's kind once and works with the steps, which are alike for all kinds.

INVARIANT: what differs between the kinds is here or behind it, and nowhere in the tokenizer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from asyncpage.text.added_tokens import AddedTokenFinder
from asyncpage.text.bpe import BytePairEncoder
from asyncpage.text.byte_alphabet import unspell
from asyncpage.text.pieces import WHOLE
from asyncpage.text.sentence_piece import SentencePieceEncoder
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.vocabulary import Vocabulary
from asyncpage.text.wordpiece import WordPieceEncoder, WordPieceRules


class Encoder(Protocol):
    """What makes ids of a piece, in one go or in portions between which it yields."""

    def encode(self, data: bytes) -> tuple[int, ...]: ...

    def encode_in_portions(self, data: bytes, ids: list[int]) -> Iterator[None]: ...


@dataclass(frozen=True, slots=True)
class VocabularyKind:
    """`finder`: normalises text and finds added tokens in it. `begin`: puts in front of a stretch between these what
    it is to begin with, told whether it is the text's first; None where nothing ever is. `cut`: the pieces of it that
    `encoder` is given. `shown`, `shown_added`: what a token of the vocabulary, or an added one, stands for.
    `drops_first_space`: the one that a decoded text begins with.
    """

    finder: AddedTokenFinder
    begin: Callable[[str, bool], str] | None
    cut: Callable[[str], Iterator[str]]
    encoder: Encoder
    shown: Callable[[str], bytes]
    shown_added: Callable[[str], bytes]
    drops_first_space: bool


def kind_of(vocabulary: Vocabulary, ids: dict[str, int]) -> VocabularyKind:
    """`ids`: of the texts that pieces can become. Errors: `ModelError` when the merges do not fit the tokens."""
    if vocabulary.word_pieces is not None:
        return _word_piece(vocabulary, vocabulary.word_pieces, ids)
    if vocabulary.sentence_pieces is not None:
        return _sentence_piece(vocabulary, vocabulary.sentence_pieces, ids)
    return _byte_level(vocabulary, ids)


def _byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> VocabularyKind:
    return VocabularyKind(
        finder=AddedTokenFinder(vocabulary.added, _to_nfc if vocabulary.is_nfc else _as_it_is),
        begin=_behind_a_space if vocabulary.splitting.add_prefix_space else None,
        cut=vocabulary.splitting.cutter(),
        encoder=BytePairEncoder(vocabulary, ids),
        shown=unspell,
        shown_added=_in_utf_8,
        drops_first_space=False,
    )


def _word_piece(vocabulary: Vocabulary, rules: WordPieceRules, ids: dict[str, int]) -> VocabularyKind:
    return VocabularyKind(
        finder=AddedTokenFinder(vocabulary.added, rules.normalize),
        begin=None,
        cut=vocabulary.splitting.cutter(),
        encoder=WordPieceEncoder(rules, ids),
        shown=rules.shown,
        shown_added=_in_utf_8,
        drops_first_space=True,
    )


def _sentence_piece(vocabulary: Vocabulary, rules: SentencePieceRules, ids: dict[str, int]) -> VocabularyKind:
    encoder = SentencePieceEncoder(vocabulary, rules, ids)
    is_whole = vocabulary.splitting.pattern == WHOLE
    return VocabularyKind(
        finder=AddedTokenFinder(vocabulary.added, rules.normalize, continued=rules.continued, settle=_as_it_is),
        begin=rules.begun if rules.prefix in ("first", "each") else None,
        cut=encoder.cut if is_whole else vocabulary.splitting.cutter(),
        encoder=encoder,
        shown=rules.shown,
        shown_added=rules.shown,
        drops_first_space=rules.drops_first_space,
    )


def _behind_a_space(text: str, is_first: bool) -> str:
    return text if text.startswith(" ") else " " + text


def _in_utf_8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _to_nfc(text: str) -> str:
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def _as_it_is(text: str) -> str:
    return text
