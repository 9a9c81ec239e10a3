"""Finds stop strings in text that arrives in pieces, and says how much of it must wait.

`TextStream` feeds it.

INVARIANT: what comes out does not depend on how the text is cut into pieces. The match is the one that ends first,
of those the longest; what is held back is the longest end of the text that some stop string begins with, no more.

Source: Aho and Corasick, "Efficient string matching", 1975: time is linear in the text, however the strings overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton of a set of stop strings: states are their beginnings, 0 is none. It holds no text's state."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.first_characters = frozenset(string[0] for string in strings)
        self._next: list[dict[str, int]] = [{}]
        self.depths = [0]
        """Characters that a state stands for: so many wait while it is the current one."""
        self.matches = [""]
        """The longest stop string that a state ends with, "" for none."""
        for string in strings:
            self._add(string)
        self._fallbacks = [0] * len(self.depths)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        following = self._next
        while True:
            found = following[state].get(character)
            if found is not None:
                return found
            if not state:
                return 0
            state = self._fallbacks[state]

    def pass_over(self, state: int) -> int:
        """The state to go on with when the match in `state` does not count: nothing waits for a string that is over."""
        while state and not self._next[state]:
            state = self._fallbacks[state]
        return state

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            found = self._next[state].get(character)
            if found is None:
                found = self._next[state][character] = len(self.depths)
                self._next.append({})
                self.depths.append(self.depths[state] + 1)
                self.matches.append("")
            state = found
        self.matches[state] = string

    def _link(self) -> None:
        """Each state's fallback: the longest beginning that is a proper end of it. Shorter states first."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                fallback = self._fallbacks[child] = self.step(self._fallbacks[state], character)
                if not self.matches[child]:
                    self.matches[child] = self.matches[fallback]
                waiting.append(child)


class StopMatcher:
    """One text's search."""

    __slots__ = ("_held", "_state", "_strings")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self._held = ""

    @property
    def holds(self) -> bool:
        """The end of the text so far may be the beginning of a stop string."""
        return self._state != 0

    def feed(self, text: str, *, counts: bool, keeps_match: bool) -> tuple[str, str | None]:
        """The text that may go out after `text` has come, and the stop string that ended it, if one did.

        `counts` False: a string that ends in this piece does not end the text. `keeps_match`: a stop string that
        was found goes out too. After a match the matcher is not to be used any more.
        """
        strings = self._strings
        if not self._state and strings.first_characters.isdisjoint(text):
            return text, None
        whole = self._held + text
        state, step, matches = self._state, strings.step, strings.matches
        for at, character in enumerate(text, len(self._held) + 1):
            state = step(state, character)
            match = matches[state]
            if match:
                if counts:
                    return whole[: at if keeps_match else at - len(match)], match
                state = strings.pass_over(state)
        self._state = state
        ready = len(whole) - strings.depths[state]
        self._held = whole[ready:]
        return whole[:ready], None

    def flush(self) -> str:
        """What was held back, when no more comes."""
        held, self._held, self._state = self._held, "", 0
        return held
