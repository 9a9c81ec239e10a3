"""The tools of the Responses API: functions in their flat form.

`read_response` calls these; they are read as those of chat completions are.

INVARIANT: a tool or a choice of another kind than functions is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown
from asyncpage.server.generate.renaming import renamed
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.generate.tool_use import ToolUse

_NAMES = (
    (r"tools\.(\d+)\.function", r"tools.\1"),
    (r"tool_choice\.allowed_tools\.tools\.(\d+)\.function", r"tool_choice.tools.\1"),
    (r"tool_choice\.(allowed_tools|function)", "tool_choice"),
)
_FUNCTION = ("name", "description", "parameters", "strict")


def read_response_tools(fields: Fields) -> ToolUse:
    """Errors: `RequestError` 400 naming the field."""
    chat = {
        "tools": _as_chat_tools(fields, fields.value("tools")),
        "tool_choice": _as_chat_choice(fields, fields.value("tool_choice")),
        "parallel_tool_calls": fields.value("parallel_tool_calls"),
    }
    with renamed(_NAMES):
        use = read_tools(Fields(chat))
    return use.renamed(_NAMES)


def shown_tools(body: Mapping[str, Any], use: ToolUse) -> dict[str, Any]:
    """`tools` and `tool_choice` as the answer repeats them."""
    tools = [
        {"type": "function", **{name: tool.get(name) for name in _FUNCTION}, "strict": bool(tool.get("strict"))}
        for tool in body.get("tools") or ()
    ]
    choice = body.get("tool_choice")
    return {"tools": tools, "tool_choice": use.choice if choice is None else choice}


def _as_chat_tools(fields: Fields, raw: Any) -> Any:
    if not isinstance(raw, list):
        return raw  # nothing, or nothing that can be read
    tools = []
    for index, tool in enumerate(raw):
        path = f"tools.{index}"
        fields.inner(tool, path).known("type", *_FUNCTION)
        _check_kind(tool.get("type"), f"{path}.type")
        function = {name: tool[name] for name in _FUNCTION if tool.get(name) is not None}
        tools.append({"type": "function", "function": function})
    return tools


def _as_chat_choice(fields: Fields, raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    choice = fields.inner(raw, "tool_choice")
    choice.known("type", "name", "mode", "tools")
    if raw.get("type") != "allowed_tools":
        _check_kind(raw.get("type"), "tool_choice.type")
        return {"type": "function", "function": {"name": raw.get("name")}}
    allowed = raw.get("tools")
    if isinstance(allowed, list):
        for index, tool in enumerate(allowed):
            choice.inner(tool, f"tool_choice.tools.{index}").known("type", "name")
            _check_kind(tool.get("type"), f"tool_choice.tools.{index}.type")
        allowed = [{"type": "function", "function": {"name": tool.get("name")}} for tool in allowed]
    return {"type": "allowed_tools", "allowed_tools": {"mode": raw.get("mode"), "tools": allowed}}


def _check_kind(kind: Any, path: str) -> None:
    if kind != "function":
        raise invalid(
            f"{path}: tools of type {shown(kind)} are not supported; this server's are functions",
            param=path,
            code="unsupported",
        )
