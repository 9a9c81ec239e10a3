"""WordPiece: how text is normalised and cut for a BERT vocabulary, and how a word is taken apart.

The tokenizer normalises and cuts with the rules, and gives the encoder one piece at a time.

INVARIANT: a piece becomes the longest tokens that it begins with, one after the other, or the one unknown token.

Sources: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018; the rules that the `tokenizers`
library keeps to, its tables of characters and its start of one range of ideographs (U+2B920) among them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

import regex

from asyncpage.records import record
from asyncpage.text.unicode_8 import MARKS, OTHERS, PUNCTUATION, character_class

PATTERN = rf"[{character_class(PUNCTUATION)}]|[^\p{{White_Space}}{character_class(PUNCTUATION)}]+"
"""The pieces of a text: each sign alone, and what lies between signs and white space, which belongs to no piece."""

IDEOGRAPHS = "3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B81F 2B920-2CEAF 2F800-2FA1F"

_OTHERS = regex.compile(f"[{character_class(OTHERS)}]+")
_MARKS = regex.compile(f"[{character_class(MARKS)}]+")
_IDEOGRAPH = regex.compile(f"[{character_class(IDEOGRAPHS)}]")


@record(frozen=True, slots=True)
class WordPieceRules:
    """What a vocabulary's files say.

    `is_cleaned`: control characters are taken out. `parts_ideographs`: each Chinese character is a word. `prefix`:
    marks tokens that go on with a word. `longest_word`: in characters; a longer one is unknown as a whole.
    """

    unknown_id: int
    is_cleaned: bool = True
    parts_ideographs: bool = True
    strips_accents: bool = True
    lowers: bool = True
    prefix: str = "##"
    longest_word: int = 100

    def normalize(self, text: str) -> str:
        """The text before it is cut."""
        if self.is_cleaned:
            text = _OTHERS.sub("", text)
        if self.parts_ideographs:
            text = _IDEOGRAPH.sub(r" \g<0> ", text)
        if self.strips_accents:
            text = _MARKS.sub("", unicodedata.normalize("NFD", text))
        if self.lowers:
            text = text.replace("Σ", "σ").lower()  # a Greek word's last letter is no exception here
        return text

    def shown(self, token: str) -> bytes:
        """What a token adds to a text that is put together again."""
        goes_on = not token or token.startswith(self.prefix)
        return (token.removeprefix(self.prefix) if goes_on else " " + token).encode("utf-8", "replace")


class WordPieceEncoder:
    """`ids`: the id of each text of the vocabulary."""

    def __init__(self, rules: WordPieceRules, ids: Mapping[str, int]) -> None:
        self._rules = rules
        self._ids = ids
        self._longest = max(map(len, ids), default=0)

    def encode(self, data: bytes) -> tuple[int, ...]:
        """The ids of one piece. What it costs is bounded by the longest word."""
        word, rules = data.decode(), self._rules
        if len(word) > rules.longest_word:
            return (rules.unknown_id,)
        found: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            for stop in range(min(len(word), start + self._longest), start, -1):
                id = self._ids.get(prefix + word[start:stop])
                if id is not None:
                    found.append(id)
                    break
            else:
                return (rules.unknown_id,)
            start, prefix = stop, rules.prefix
        return tuple(found)

    def encode_in_portions(self, data: bytes, ids: list[int]) -> Iterator[None]:
        """Append the ids of a long piece to `ids`, in one portion: it takes less than a millisecond."""
        ids += self.encode(data)
        yield
