"""The tools of the Messages API: functions with an input schema.

`read_message` and `count_tokens` call `read_message_tools`; they are read as those of chat completions are.

INVARIANT: a tool of another kind than functions, and a choice that is none of this API's, is refused by name.
"""

from __future__ import annotations

from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.renaming import renamed
from asyncpage.server.tool_fields import ToolUse, read_tools

_NAMES = (
    (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
    (r"tools\.(\d+)\.function", r"tools.\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_message_tools(fields: Fields) -> ToolUse:
    """Errors: `RequestError` 400 naming the field."""
    wanted = fields.mapping("tool_choice")
    choice: Any = None
    is_single = None
    if wanted is not None:
        asked = Fields(wanted, "tool_choice")
        kind = asked.required("type")
        is_single = asked.boolean("disable_parallel_tool_use")
        if kind == "tool":
            choice = {"type": "function", "function": {"name": asked.required("name")}}
        elif isinstance(kind, str) and kind in _CHOICES:
            choice = _CHOICES[kind]
        else:
            raise invalid(
                f"tool_choice.type must be auto, any, tool or none; got {shown(kind)}", param="tool_choice.type"
            )
    chat = {
        "tools": _as_chat_tools(fields.value("tools")),
        "tool_choice": choice,
        "parallel_tool_calls": None if is_single is None else not is_single,
    }
    with renamed(_NAMES):
        return read_tools(Fields(chat))


def _as_chat_tools(raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw  # nothing, or nothing that can be read
    tools = []
    for index, tool in enumerate(raw):
        path = f"tools.{index}"
        if not isinstance(tool, dict):
            raise wrong_type(path, "an object", tool)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            raise invalid(
                f"{path}.type: tools of type {shown(kind)} are not supported; this server's are functions with an "
                "input_schema",
                param=f"{path}.type",
                code="unsupported",
            )
        schema = Fields(tool, path).required("input_schema")
        function = {"name": tool.get("name"), "parameters": schema}
        for name in ("description", "strict"):
            if tool.get(name) is not None:
                function[name] = tool[name]
        tools.append({"type": "function", "function": function})
    return tools
