"""A vocabulary made in memory, for engines that run no model: byte-level, with words to draw answers from.

Simulations and benches of the control plane build a `Tokenizer` from it.

INVARIANT: ids below `WORDS_FROM` are the 256 bytes, those from there up to the last are whole words of plain
letters, and the last is the only one that ends an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from asyncpage.errors import UsageError
from asyncpage.text.byte_alphabet import CHARACTERS, spell
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.vocabulary import AddedToken, Vocabulary

WORDS_FROM = 256
"""The first id that is a whole word."""

END_TEXT = "<|end|>"

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_MOST_WORDS = 26 + 26**2 + 26**3


def artificial_vocabulary(size: int = 1024) -> Vocabulary:
    """`size` tokens: 256 bytes, words of one to three letters behind a space, and one end token.

    Errors: `UsageError` for a size that leaves no word, or asks for more than there are.
    """
    words = size - WORDS_FROM - 1
    if not 1 <= words <= _MOST_WORDS:
        raise UsageError(f"an artificial vocabulary has {WORDS_FROM + 2} to {WORDS_FROM + 1 + _MOST_WORDS} tokens")
    texts = [word for word, _ in zip(_words(), range(words), strict=False)]
    tokens = (*CHARACTERS, *(spell(word.encode()) for word in texts), END_TEXT)
    end = len(tokens) - 1

    def merges() -> Iterator[tuple[str, str]]:
        # Every word is an earlier one and a letter, so that each merges from what merged before it.
        for word in texts:
            yield spell(word[:-1].encode()), word[-1]

    return Vocabulary(
        source="the artificial vocabulary",
        tokens=tokens,
        merges=merges,
        added=(AddedToken(end, END_TEXT),),
        splitting=Splitting(GPT2),
        end_ids=(end,),
        named={"eos_token": END_TEXT},
    )


def _words() -> Iterator[str]:
    """Words from the shortest on, common letters first."""
    for length in (1, 2, 3):
        for letters in product(_LETTERS, repeat=length):
            yield " " + "".join(letters)
