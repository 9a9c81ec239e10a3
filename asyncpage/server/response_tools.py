"""The tools of the Responses API: functions in their flat form.

`read_response` calls these; they are read as those of chat completions are.

INVARIANT: a tool or a choice of another kind than functions is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.renaming import renamed
from asyncpage.server.tool_fields import ToolUse, read_tools

_NAMES = ((r"tools\.(\d+)\.function", r"tools.\1"), (r"tool_choice\.function", "tool_choice"))
_FUNCTION = ("name", "description", "parameters", "strict")


def read_response_tools(fields: Fields) -> ToolUse:
    """Errors: `RequestError` 400 naming the field."""
    tools = _as_chat_tools(fields.value("tools"), "tools")
    choice = fields.value("tool_choice")
    allowed = None
    match choice:
        case {"type": "allowed_tools"}:
            subset = Fields(choice, "tool_choice")
            allowed = _names(subset.required("tools"))
            choice = subset.required("mode")
            if choice not in ("auto", "required"):
                raise invalid(
                    f"tool_choice.mode must be auto or required; got {shown(choice)}", param="tool_choice.mode"
                )
        case {"type": "function"}:
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        case dict():
            kind = shown(choice.get("type"))
            raise invalid(
                f"tool_choice.type: {kind} is not supported; this server's tools are functions",
                param="tool_choice.type",
                code="unsupported",
            )
    chat = {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": fields.value("parallel_tool_calls"),
    }
    with renamed(_NAMES):
        use = read_tools(Fields(chat))
    if allowed is None:
        return use
    absent = allowed - {tool.name for tool in use.tools}
    if absent:
        raise invalid(f"tool_choice.tools: {shown(min(absent))} is none of the tools", param="tool_choice.tools")
    return replace(use, tools=tuple(tool for tool in use.tools if tool.name in allowed))


def shown_tools(body: Mapping[str, Any], use: ToolUse) -> dict[str, Any]:
    """`tools` and `tool_choice` as the answer repeats them."""
    tools = [
        {"type": "function", **{name: tool.get(name) for name in _FUNCTION}, "strict": bool(tool.get("strict"))}
        for tool in body.get("tools") or ()
    ]
    choice = body.get("tool_choice")
    return {"tools": tools, "tool_choice": use.choice if choice is None else choice}


def _as_chat_tools(raw: Any, path: str) -> Any:
    if not isinstance(raw, list):
        return raw  # nothing, or nothing that can be read
    tools = []
    for index, tool in enumerate(raw):
        if not isinstance(tool, dict):
            raise wrong_type(f"{path}.{index}", "an object", tool)
        kind = tool.get("type")
        if kind != "function":
            raise invalid(
                f"{path}.{index}.type: tools of type {shown(kind)} are not supported; this server's are functions",
                param=f"{path}.{index}.type",
                code="unsupported",
            )
        function = {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}
        tools.append({"type": "function", "function": function})
    return tools


def _names(raw: Any) -> set[str]:
    path = "tool_choice.tools"
    if not isinstance(raw, list) or not raw:
        raise wrong_type(path, "a list of functions", raw)
    names = set()
    for index, tool in enumerate(raw):
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise invalid(f"{path}.{index} must name a function", param=f"{path}.{index}")
        names.add(tool["name"])
    return names
