"""A reply reader written as one generator, from the first character to the last: it yields where it needs more text.

The readers of tool calls are made of it.

INVARIANT: text leaves as content, as part of a call, or as the markup of a call; a script decides by what was read
and never by where it was cut. What a text costs grows with its length and no faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import TypeVar

import regex

from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, ContentPart, ReplyPart

Result = TypeVar("Result")
Script = Generator[None, None, Result]

SPACE = " \t\r\n"
MOST_SPACE = 1024
"""Characters of white space that may belong to a marker next to them; they are held until it is known to come."""

SLICE = 4096
"""Characters that are read at once: steps go over all of them, and copy what is left, at each marker."""

MOST_READ_AGAIN = 256 * 1024
"""Characters of an answer that may be gone over in vain and yet be searched for another call."""


class ScriptedReader:
    """Subclasses write `script` from the steps below it. `calls`: how many have begun."""

    def __init__(self) -> None:
        self.calls = 0
        self._text = ""  # not read yet
        self._ahead: deque[str] = deque()  # what comes behind it, in slices
        self._has_ended = False  # nothing comes behind them
        self._is_over = False  # nothing comes behind the text
        self._read_again = 0  # characters that were gone over in vain
        self._markup = ""  # read last, for when it turns out to be no markup
        self._is_behind_call = False  # nothing was said since one ended
        self._parts: list[ReplyPart] = []
        self._running: Script[None] | None = self.script()

    def script(self) -> Script[None]:
        """Reads everything. It must not yield once the text is over."""
        raise NotImplementedError

    def feed(self, text: str) -> Sequence[ReplyPart]:
        if not text:
            return ()
        self._ahead += _slices(text)
        return self._run()

    def end(self) -> Sequence[ReplyPart]:
        self._has_ended = True
        return self._run()

    def _run(self) -> Sequence[ReplyPart]:
        while self._running is not None:
            if self._ahead:
                self._text += self._ahead.popleft()
            self._is_over = self._has_ended and not self._ahead
            try:
                next(self._running)
            except StopIteration:
                self._running = None
            if not self._ahead:
                break
        parts, self._parts = self._parts, []
        return parts

    # --- the steps of a script ---------------------------------------------------------------------------------------

    def content(self, *markers: str) -> Script[str]:
        """Let text through as content up to one of `markers`, which is returned; "" when the text is over.

        White space around a call belongs to its markup, so far as it is no more than is held.
        """
        while True:
            at, found = first_of(self._text, markers)
            if found:
                shown = self._text[: before_space(self._text, at)]
                self._markup = self._text[len(shown) : at + len(found)]
                self._text = self._text[at + len(found) :]
                self.say(shown)
                return found
            if self._is_over:
                rest, self._text = self._text, ""
                if not self._is_behind_call or rest.strip(SPACE):
                    self.say(rest)
                return ""
            sure = len(self._text) - held_behind(self._text, markers)
            shown = self._text[: before_space(self._text, sure)]
            self._text = self._text[len(shown) :]
            self.say(shown)
            yield

    def match(self, pattern: regex.Pattern[str], most: int) -> Script[regex.Match[str] | None]:
        """What `pattern` matches here, which becomes the markup read last; None when nothing does within `most`.

        It must not end with what may be left out: that depends on what follows.
        """
        while True:
            found = pattern.match(self._text, partial=not self._is_over)
            # A longer one is refused also where it is seen whole, so that it does not depend on the cut.
            if found is None or (len(self._text) if found.partial else found.end()) > most:
                return None
            if not found.partial:
                self._markup += found[0]
                self._text = self._text[found.end() :]
                return found
            yield

    def broken_off(self, pattern: regex.Pattern[str]) -> regex.Match[str] | None:
        """What stands here, where the text is over and `pattern` would match if it went on."""
        found = pattern.match(self._text, partial=True) if self._is_over else None
        return found if found is not None and found.partial else None

    def skip_markup(self, marker: str) -> Script[None]:
        """Leave out `marker` if it comes next, with white space before it, and its beginning if nothing more comes."""
        while True:
            rest = self._text.lstrip()
            if len(self._text) - len(rest) > MOST_SPACE:
                return
            if rest.startswith(marker):
                self._text = rest[len(marker) :]
                return
            if not marker.startswith(rest):
                return
            if self._is_over:
                self._text = ""
                return
            yield

    def reject(self, tried: str) -> None:
        """`tried`, read behind the markup read last, is none. It is read again, as long as there was not much of that.

        Where there was, it is content as the markup is. The markup is still to be restored.
        """
        self._read_again += len(tried)
        if self._read_again > MOST_READ_AGAIN:
            self._markup += tried
        else:
            self._text, *ahead = _slices(tried + self._text) or [""]
            self._ahead.extendleft(reversed(ahead))
            self._is_over = self._is_over and not ahead

    def take_rest(self) -> str:
        """What is not read yet, for another reader."""
        rest = self._text + "".join(self._ahead)
        self._text, self._ahead = "", deque()
        return rest

    def say(self, text: str) -> None:
        if text:
            self._parts.append(ContentPart(text))
            self._is_behind_call = False

    def restore_markup(self) -> None:
        """The markup read last is none: it is content."""
        markup, self._markup = self._markup, ""
        self.say(markup)

    def begin_call(self, name: str) -> None:
        self._parts.append(CallBegun(self.calls, name))
        self.calls += 1

    def give_arguments(self, text: str) -> None:
        """More arguments of the call begun last."""
        if text:
            self._parts.append(CallArguments(self.calls - 1, text))

    def end_call(self) -> None:
        self._parts.append(CallEnded(self.calls - 1))
        self._markup = ""
        self._is_behind_call = True


def _slices(text: str) -> list[str]:
    return [text[at : at + SLICE] for at in range(0, len(text), SLICE)]


def first_of(text: str, markers: Sequence[str]) -> tuple[int, str]:
    """Where the first of `markers` begins, and which; (-1, "") where there is none."""
    best, which = -1, ""
    for marker in markers:
        at = text.find(marker)
        if at >= 0 and (best < 0 or at < best):
            best, which = at, marker
    return best, which


def before_space(text: str, end: int) -> int:
    """Where the white space that `text[:end]` ends with begins, so far as it may belong to a marker behind it."""
    least = max(0, end - MOST_SPACE)
    return least + len(text[least:end].rstrip(SPACE))


def held_behind(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `markers`."""
    most = 0
    for marker in markers:
        at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
        while at >= 0:
            if marker.startswith(text[at:]):
                most = max(most, len(text) - at)
                break
            at = text.find(marker[0], at + 1)
    return most
