"""The tools of a request and what may be done with them, as every dialect says it.

`tool_fields` reads one from a body, `reply_plan` makes of it what prompt and answer need.

INVARIANT: `named` is the name of one of `tools` wherever `choice` is "named".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from asyncpage.server.generate.renaming import Renaming, rename
from asyncpage.text.tools.tool import Tool

Choice = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request. `named`: the one that must be called where `choice` is "named".

    `is_parallel` False: at most one call an answer. `places`: where each tool's schema stands in the request, by name.
    """

    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    named: str = ""
    is_parallel: bool = True
    places: Mapping[str, str] = field(default_factory=dict, compare=False)

    def place_of(self, tool: Tool) -> str:
        """Where the tool's schema stands, at least about."""
        return self.places.get(tool.name, "tools")

    def renamed(self, names: Sequence[Renaming]) -> ToolUse:
        """The same where the request is another API's, which calls its fields by these names."""
        return replace(self, places={name: rename(place, names) for name, place in self.places.items()})
