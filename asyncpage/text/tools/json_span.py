"""Where a JSON value ends, found while it comes.

The readers of tool calls pass a call's arguments on by it.

INVARIANT: brackets, quotes and markers inside of a string count for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_IN_STRING = re.compile(r'["\\]')


class JsonSpan:
    """One value that begins with a bracket. It is found by its brackets alone, so what a model got wrong passes too.

    `stops`: markers that end it before its time, outside of strings. `depth`: brackets that are open.
    """

    def __init__(self, stops: Sequence[str], depth: int = 0) -> None:
        self.depth = depth
        self._is_in_string = False
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        first = "".join(re.escape(stop[0]) for stop in stops)
        self._outside = re.compile(rf'[{{}}\[\]"{first}]')

    def scan(self, text: str, at: int, *, is_over: bool) -> tuple[int, bool]:
        """Read `text` from `at`: how far it is known to belong to the value, and whether the value ends there.

        The next scan goes on from there. `is_over`: nothing comes behind `text`.
        """
        while True:
            found = (_IN_STRING if self._is_in_string else self._outside).search(text, at)
            if found is None:
                return len(text), False
            here, character = found.start(), found[0]
            at = found.end()
            if self._is_in_string:
                if character == '"':
                    self._is_in_string = False
                elif at == len(text) and not is_over:
                    return here, False
                else:
                    at += 1
            elif any(text.startswith(stop, here) for stop in self._stops):
                return here, True
            elif not is_over and any(stop.startswith(text[here : here + self._longest]) for stop in self._stops):
                return here, False
            elif character == '"':
                self._is_in_string = True
            elif character in "{[":
                self.depth += 1
            elif character in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    return at, True
