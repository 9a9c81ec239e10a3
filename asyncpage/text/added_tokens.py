"""Finding added tokens in text, before anything else is done to it.

The tokenizer gives it text and goes on with the stretches between.

INVARIANT: the stretches and the tokens found, joined in order, are the text, but for white space that a token
swallows.

Source: the rules of the `tokenizers` library: the longest token at the leftmost place; those that are looked for in
raw text go first, those looked for in normalised text share what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import regex

from asyncpage.text.alternatives import any_of
from asyncpage.text.vocabulary import AddedToken


class AddedTokenFinder:
    """The added tokens of one vocabulary.

    `normalize` is the vocabulary's own. `continued`: the same for a stretch that goes on with a text that is there.
    `settle`: brings normalised text into shape again after something was taken out of it.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken],
        normalize: Callable[[str], str],
        *,
        continued: Callable[[str], str] | None = None,
        settle: Callable[[str], str] | None = None,
    ) -> None:
        tokens = tuple(tokens)
        raw = {token.text: token for token in tokens if not token.normalized}
        late = {normalize(token.text): token for token in tokens if token.normalized}
        self._normalize = normalize
        self._continued = normalize if continued is None else continued
        self._settle = normalize if settle is None else settle
        self._raw, self._raw_pattern = raw, _pattern(raw)
        self._late, self._late_pattern = late, _pattern(late)

    def split(self, text: str, *, parse_special: bool, guard: str = "", continues: bool = False) -> Iterator[str | int]:
        """Stretches of normalised text, none empty, and ids of added tokens, in order.

        `parse_special` False leaves the texts of control tokens as they are. `guard` is taken out of the stretches
        after control tokens were looked for. `continues`: the text goes on with another.
        """
        normalize = self._continued if continues else self._normalize
        for part in _split(text, self._raw, self._raw_pattern, parse_special):
            if isinstance(part, int):
                yield part
            elif not guard or part.strip(guard):
                for late in _split(normalize(part), self._late, self._late_pattern, parse_special):
                    if isinstance(late, int):
                        yield late
                    elif clean := self._settle(late.replace(guard, "")) if guard else late:
                        yield clean
            normalize = self._normalize


def _pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """The longest token at the leftmost place."""
    texts = tuple(tokens)
    return re.compile(any_of(texts)) if texts else None


def _split(
    text: str, tokens: dict[str, AddedToken], pattern: re.Pattern[str] | None, parse_special: bool
) -> Iterator[str | int]:
    done = 0
    for match in pattern.finditer(text) if pattern is not None else ():
        token = tokens[match[0]]
        if token.is_special and not parse_special:
            continue
        start, stop = match.span()
        if token.single_word and (_ends_in_word(text, start) or _begins_with_word(text, stop)):
            continue
        if token.lstrip:
            while start > done and _SPACE.match(text[start - 1]):
                start -= 1
        if token.rstrip:
            while stop < len(text) and _SPACE.match(text[stop]):
                stop += 1
        if done < start:
            yield text[done:start]
        yield token.id
        done = stop
    if done < len(text):
        yield text[done:]


# Unicode's own definitions; `\s` and `\w` of the `re` module differ from them.
_SPACE = regex.compile(r"\p{White_Space}")
_WORD = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")


def _ends_in_word(text: str, stop: int) -> bool:
    return stop > 0 and _WORD.match(text[stop - 1]) is not None


def _begins_with_word(text: str, start: int) -> bool:
    return start < len(text) and _WORD.match(text[start]) is not None
