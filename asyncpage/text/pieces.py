"""How text is cut into the pieces that merging stays inside of: the pre-tokenisers that we know, each by its patterns.

The vocabulary readers choose one by the name or pattern that a file gives; the tokenizer cuts with it.

INVARIANT: the pieces of a text, joined, are the text, but for the white space that WordPiece drops. A pattern or name
that is not listed here is refused: a pattern that is nearly right gives tokens that are nearly right.

Sources: the published patterns of GPT-2, SmolLM2, Llama 3, Qwen2, o200k (GPT-4o), Tekken (Mistral Nemo), DeepSeek LLM
and DeepSeek V3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import itemgetter

import regex

from asyncpage.records import record

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Digits are cut off singly first, then GPT-2's pattern cuts what lies between: white space before a digit is at the
# end of its part, so it stays whole there, as it does at the end of the text.
SMOLLM = r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LATER = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _LATER % r"\p{N}{1,3}"
QWEN2 = _LATER % r"\p{N}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|"
    r"%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = _CASED % ("", "", r"\p{N}")
O200K = _CASED % (_ENDINGS + "?", _ENDINGS + "?", r"\p{N}{1,3}")

WHOLE = r"(?s:.+)"


DIGIT = r"\p{N}"
DIGITS = r"\p{N}+"

_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d"
    "\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-"
    "\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-"
    "\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-"
    "\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-"
    "\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = (
    "[\r\n]",
    rf"\s?[{_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    DIGIT,
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

COVERING = frozenset((GPT2, LLAMA3, QWEN2, TEKKEN, O200K))
"""Patterns that a `tokenizer.json` may spell out and that match all of any text."""

PARTING = frozenset((*DEEPSEEK_LLM, *DEEPSEEK_V3)) - {DIGIT}
"""Those that may be between others: what they do not match is a part of its own."""

# At every place of a run of white space that does not end the text the search would begin anew: quadratic.
_LINEAR = {r"\s+$": r"(?<!\s)\s++$"}


@record(frozen=True, slots=True)
class Splitting:
    """A pattern, and whether text that does not begin with a space gets one in front.

    `earlier`: patterns that cut the text before, one behind the other: what each matches is a part, and what lies
    between. The last pattern then cuts every part, and what it does not match is a piece too.
    """

    pattern: str
    add_prefix_space: bool = False
    earlier: tuple[str, ...] = ()

    def cutter(self) -> Callable[[str], Iterator[str]]:
        """What gives the pieces of a text, in order."""
        if not self.earlier:
            find, whole_match = regex.compile(self.pattern).finditer, itemgetter(0)
            return lambda text: map(whole_match, find(text))
        steps = [regex.compile(_LINEAR.get(pattern, pattern)) for pattern in (*self.earlier, self.pattern)]
        return lambda text: reduce(_isolated, steps, iter((text,)))


def _isolated(parts: Iterable[str], pattern: regex.Pattern[str]) -> Iterator[str]:
    """Each match in each part, and what lies between."""
    for part in parts:
        done = 0
        for match in pattern.finditer(part):
            start, stop = match.span()
            if done < start:
                yield part[done:start]
            yield part[start:stop]
            done = stop
        if done < len(part):
            yield part[done:]
