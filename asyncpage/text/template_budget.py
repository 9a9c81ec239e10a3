"""What one rendering of a chat template may cost, counted and not timed.

The sandbox charges every operation to it before the operation is done.

INVARIANT: the work between two charges is at most in proportion to the second charge, so a spent budget bounds the
time, whatever the template: about a second, for a unit of some three microseconds.
"""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, ValuesView

from asyncpage.errors import AsyncpageError

MAX_UNITS = 250_000
MAX_CHARACTERS = 10_000_000  # of output, and of any text on the way to it
CHARACTERS_A_UNIT = 256  # what the slower text operations do in three microseconds


class TemplateTooCostly(AsyncpageError):
    """The template asks for more work or text than a rendering may have."""


class Budget:
    """The units and output characters that are left. `extra_units` is for a long conversation."""

    __slots__ = ("_characters", "_units")

    def __init__(self, extra_units: int = 0) -> None:
        self._units = MAX_UNITS + extra_units
        self._characters = MAX_CHARACTERS

    def spend(self, units: int) -> None:
        """Errors: `TemplateTooCostly` when it is more than what is left."""
        self._units -= units
        if self._units < 0:
            raise TemplateTooCostly("it does more work than a chat template may")

    def spend_text(self, characters: int) -> None:
        """Charge for a text of so many characters. Errors: as `spend`, or when no text may be so long."""
        if characters > MAX_CHARACTERS:
            raise TemplateTooCostly(f"it makes a text of {characters} characters, at most {MAX_CHARACTERS} are allowed")
        self.spend(1 + characters // CHARACTERS_A_UNIT)

    def spend_output(self, characters: int) -> None:
        """Charge for output, also for what a macro or block puts out on the way."""
        self._characters -= characters
        if self._characters < 0:
            raise TemplateTooCostly(f"it puts out more than {MAX_CHARACTERS} characters")
        self.spend_text(characters)

    def weigh(self, *values: object) -> int:
        """Charge for looking at all of `values`, down to the leaves; returns the units.

        A value that is there twice counts twice: that is what it costs to write it out.
        """
        units = 0
        limit = self._units
        stack = list(values)
        while stack:
            value = stack.pop()
            units += 1
            if isinstance(value, str | bytes):
                units += len(value) // CHARACTERS_A_UNIT
            elif isinstance(value, dict):
                stack += value.keys()
                stack += value.values()
            elif isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
                stack += value
            if units + len(stack) > limit:
                break
        self.spend(units + len(stack))
        return units
