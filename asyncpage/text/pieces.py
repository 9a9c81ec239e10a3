"""How text is cut into the pieces that BPE merges inside of: the pre-tokenisers that we know, each by its pattern.

The vocabulary readers choose one by the name or pattern that a file gives; the tokenizer cuts with it.

INVARIANT: the pieces of a text, joined, are the text, but for the white space that WordPiece drops. A pattern or name
that is not listed here is refused: a pattern that is nearly right gives tokens that are nearly right.

Sources: the published patterns of GPT-2, SmolLM2, Llama 3 and Qwen2.
"""

from __future__ import annotations

import regex

from asyncpage.records import record

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Digits are cut off singly first, then GPT-2's pattern cuts what lies between: white space before a digit is at the
# end of its part, so it stays whole there, as it does at the end of the text.
SMOLLM = r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

_LATER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _LATER % r"\p{N}{1,3}"
QWEN2 = _LATER % r"\p{N}"

WHOLE = r"(?s:.+)"

PATTERNS = (GPT2, LLAMA3, QWEN2)
"""Patterns that a `tokenizer.json` may spell out."""

NAMES = {
    "gpt-2": GPT2,
    "smollm": SMOLLM,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "qwen2": QWEN2,
}
"""Names that a GGUF file may give."""


@record(frozen=True, slots=True)
class Splitting:
    """A pattern, and whether text that does not begin with a space gets one in front."""

    pattern: str
    add_prefix_space: bool = False

    def compiled(self) -> regex.Pattern[str]:
        """The pattern, ready to search with."""
        return regex.compile(self.pattern)
