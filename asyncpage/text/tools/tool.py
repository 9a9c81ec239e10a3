"""A function that the client offers to the model.

The server's body readers make them; parsers read calls of them and constraints are made from them.

INVARIANT: what a template is shown of a tool is what the client wrote of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a function that was given none."""

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters`: the JSON Schema of its arguments, None where it takes none. `strict`: calls must follow it."""

    name: str
    description: str
    parameters: Mapping[str, Any] | None
    strict: bool

    @property
    def schema(self) -> Mapping[str, Any]:
        return NO_ARGUMENTS if self.parameters is None else self.parameters

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument, as far as the tool's schema says."""
        found = self.schema.get("properties")
        return found if isinstance(found, Mapping) else {}

    def to_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}
