"""Thinking between two markers at the beginning of an answer, the first of which the prompt may have written.

Found by the entry points `deepseek_r1`, `qwen3`, `mistral` and `seed_oss`.

INVARIANT: only the beginning of an answer can be thinking; white space around the markers belongs to them, so far as
it is held.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import regex

from asyncpage.text.reasoning.parser import API
from asyncpage.text.reply import ReasoningPart, ReplyPart, ReplyReader
from asyncpage.text.scripted_reader import (
    MOST_SPACE,
    SPACE,
    Script,
    ScriptedReader,
    before_space,
    first_of,
    held_behind,
)
from asyncpage.text.tools.part import NOTHING, Part, any_of, control, free, literal, sequence


class DeepSeekR1:
    """`<think>` and `</think>`: the commonest markers."""

    api = API
    name = "deepseek_r1"
    shows_control = False
    opening, closing = "<think>", "</think>"

    def __init__(self, template: str) -> None:
        pass

    @classmethod
    def fits(cls, template: str) -> bool:
        return cls.closing in template

    def is_open(self, prompt_end: str) -> bool:
        return prompt_end.rfind(self.opening) > prompt_end.rfind(self.closing)

    def new_reader(self, inner: ReplyReader, *, is_open: bool) -> ReplyReader:
        return ThinkReader(inner, self.opening, self.closing, is_open=is_open)

    def structure(self, answer: Part, *, is_open: bool) -> Part:
        space = any_of(literal("\n\n"), literal("\n"), NOTHING)
        mark = control if self.shows_control else literal
        rest = sequence(free(self.closing), mark(self.closing), space, answer)
        return rest if is_open else any_of(answer, sequence(mark(self.opening), rest))


class Qwen3(DeepSeekR1):
    """The same by the name that users of Qwen models look for."""

    name = "qwen3"


class MistralThink(DeepSeekR1):
    """`[THINK]` and `[/THINK]`, which are control tokens."""

    name = "mistral"
    shows_control = True
    opening, closing = "[THINK]", "[/THINK]"


class SeedOss(DeepSeekR1):
    """`<seed:think>` and `</seed:think>`."""

    name = "seed_oss"
    opening, closing = "<seed:think>", "</seed:think>"


class ThinkReader(ScriptedReader):
    """`is_open`: the answer begins with thinking, its first marker written or not."""

    def __init__(self, inner: ReplyReader, opening: str, closing: str, *, is_open: bool) -> None:
        self._inner = inner
        self._opening = regex.compile(rf"\s*{re.escape(opening)}")
        self._closing = closing
        self._is_open = is_open
        self._is_answering = False
        super().__init__()

    def feed(self, text: str) -> Sequence[ReplyPart]:
        return self._inner.feed(text) if self._is_answering else super().feed(text)

    def end(self) -> Sequence[ReplyPart]:
        return [*super().end(), *self._inner.end()]

    def script(self) -> Script[None]:
        found = yield from self.match(self._opening, MOST_SPACE)
        if found is not None or self._is_open:
            yield from self._space()
            yield from self._thinking()
            yield from self._space()
        self._is_answering = True
        self._parts += self._inner.feed(self.take_rest())

    def _thinking(self) -> Script[None]:
        while True:
            at, found = first_of(self._text, (self._closing,))
            if found:
                self._think(self._text[: before_space(self._text, at)])
                self._text = self._text[at + len(found) :]
                return
            if self._is_over:
                self._think(self._text)
                self._text = ""
                return
            sure = len(self._text) - held_behind(self._text, (self._closing,))
            sure = before_space(self._text, sure)
            self._think(self._text[:sure])
            self._text = self._text[sure:]
            yield

    def _think(self, text: str) -> None:
        if text:
            self._parts.append(ReasoningPart(text))

    def _space(self) -> Script[None]:
        """Leave out white space up to the next character."""
        while True:
            self._text = self._text.lstrip(SPACE)
            if self._text or self._is_over:
                return
            yield
