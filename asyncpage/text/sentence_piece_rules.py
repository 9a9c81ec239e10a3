"""What a file says of a SentencePiece vocabulary: how spaces and bytes are written, and where a space is put in front.

The vocabulary readers fill it in; the tokenizer normalises and shows text with it.

INVARIANT: what `shown` gives for the tokens of a text is the text, but for the space in front.

Source: Kudo and Richardson, "SentencePiece: A simple and language independent subword tokenizer", 2018.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from asyncpage.records import record

SPACE = "\u2581"
"""Stands for a space in tokens."""

Prefix = Literal["none", "first", "each", "always"]

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


@record(frozen=True, slots=True)
class SentencePieceRules:
    """What a vocabulary's files say.

    `prefix`: which stretches between added tokens get a space in front: the first, or each, that begins with none;
    "always" also those that begin with one. `falls_back`: a character without a token becomes the tokens of its bytes.
    `drops_first_space`: the one that a decoded text begins with. `scores`: of each id, where the file has these in
    place of merges: the pair is joined first that makes the token of the highest score; None for a token that is not
    made of others.
    """

    prefix: Prefix = "none"
    falls_back: bool = True
    drops_first_space: bool = False
    scores: Sequence[float | None] | None = None

    def normalize(self, text: str) -> str:
        """A stretch of text, before normalised added tokens are looked for."""
        text = self.continued(text)
        return SPACE + text if self.prefix == "always" and text else text

    def continued(self, text: str) -> str:
        """The same for a stretch that goes on with what is there."""
        return text.replace(" ", SPACE)

    def begun(self, text: str, is_first: bool) -> str:
        """A stretch of normalised text, behind the space that it may get in front."""
        has_prefix = self.prefix == "each" or (self.prefix == "first" and is_first)
        return SPACE + text if has_prefix and not text.startswith(SPACE) else text

    def shown(self, token: str) -> bytes:
        """What a token stands for."""
        if self.falls_back and (byte := _BYTE.fullmatch(token)):
            return bytes((int(byte[1], 16),))
        return token.replace(SPACE, " ").encode("utf-8", "replace")
