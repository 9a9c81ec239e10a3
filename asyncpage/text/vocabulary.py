"""What a tokenizer is made of, as values, whatever file it was read from.

`gguf_vocabulary` and `folder_vocabulary` fill it in; the tokenizer and the chat template are built from it.

INVARIANT: every id in it is inside the vocabulary, and an entry of `added` has its own text under its own id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from asyncpage.text.pieces import Splitting
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.wordpiece import WordPieceRules


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text before anything else is done to it.

    `is_special`: a control token. `lstrip`, `rstrip`: it swallows the white space on that side. `single_word`: it
    counts only where no word character touches it. `normalized`: it is looked for in normalised text.
    """

    id: int
    text: str
    is_special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary: byte-level BPE, or WordPiece or SentencePiece's BPE where it has their rules.

    `tokens`: the text of each id, "" where there is none. `merges` gives pairs of texts, most urgent first.
    `splitting`: how text is cut into pieces. `is_nfc`: text is brought to Unicode form NFC first. `ignore_merges`:
    a piece that is a token is taken whole. `unknown_id`: stands for bytes without a token, None drops them;
    `fuse_unknown` makes one of several in a row. `prefix_ids`, `suffix_ids`: put around a text prompt.
    `end_ids`: tokens that end an answer. `named`: texts of the tokens that templates know by role (`bos_token`).
    `templates`: chat templates by name, the usual one is "default". `outside`: ids of added tokens that text cannot
    be merged into.
    """

    source: str
    tokens: Sequence[str]
    merges: Callable[[], Iterator[tuple[str, str]]]
    added: tuple[AddedToken, ...]
    splitting: Splitting
    is_nfc: bool = False
    ignore_merges: bool = False
    unknown_id: int | None = None
    fuse_unknown: bool = False
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    end_ids: tuple[int, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    word_pieces: WordPieceRules | None = None
    sentence_pieces: SentencePieceRules | None = None
    outside: frozenset[int] = frozenset()
