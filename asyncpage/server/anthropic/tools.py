"""The tools of the Messages API: functions with an input schema.

`read_message` and `count_tokens` call `read_message_tools`; they are read as those of chat completions are.

INVARIANT: a tool of another kind than functions, and a choice that is none of this API's, is refused by name.
"""

from __future__ import annotations

from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown
from asyncpage.server.generate.renaming import renamed
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.generate.tool_use import ToolUse

_NAMES = (
    (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"),
    (r"tools\.(\d+)\.function", r"tools.\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
)
_WITHOUT_EFFECT = ("cache_control", "input_examples", "defer_loading", "allowed_callers", "eager_input_streaming")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read_message_tools(fields: Fields) -> ToolUse:
    """Errors: `RequestError` 400 naming the field."""
    choice: Any = None
    is_single = None
    if fields.value("tool_choice") is not None:
        asked = fields.object("tool_choice")
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
        "tools": _as_chat_tools(fields, fields.value("tools")),
        "tool_choice": choice,
        "parallel_tool_calls": None if is_single is None else not is_single,
    }
    with renamed(_NAMES):
        use = read_tools(Fields(chat))
    return use.renamed(_NAMES)


def _as_chat_tools(fields: Fields, raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw  # nothing, or nothing that can be read
    tools = []
    for index, tool in enumerate(raw):
        path = f"tools.{index}"
        own = fields.inner(tool, path)
        own.known(*_WITHOUT_EFFECT)
        kind = own.value("type")
        if kind not in (None, "custom"):
            raise invalid(
                f"{path}.type: tools of type {shown(kind)} are not supported; this server's are functions with an "
                "input_schema",
                param=f"{path}.type",
                code="unsupported",
            )
        schema = own.required("input_schema")
        function = {"name": own.value("name"), "parameters": schema}
        for name in ("description", "strict"):
            if own.value(name) is not None:
                function[name] = own.value(name)
        tools.append({"type": "function", "function": function})
    return tools
