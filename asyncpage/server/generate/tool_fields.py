"""Reads `tools`, `tool_choice` and `parallel_tool_calls`, in the form of chat completions.

The body readers of every dialect call it; those of other APIs bring their fields to this form first.

INVARIANT: a choice names only tools that the request has.
"""

from __future__ import annotations

import re
from dataclasses import replace

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.tool_use import ToolUse
from asyncpage.server.generate.unsupported import unsupported
from asyncpage.text.tools.tool import Tool

MAX_TOOLS = 512
MAX_DESCRIPTION = 64 * 1024
NAME = r"[A-Za-z0-9_-]{1,64}"


def read_tools(fields: Fields) -> ToolUse:
    """The tools of a chat completion's body. Errors: `RequestError` 400 naming the field."""
    tools, places = _read_list(fields)
    is_parallel = fields.boolean("parallel_tool_calls")
    use = ToolUse(tools, is_parallel=is_parallel is not False, places=places)
    choice = fields.value("tool_choice")
    if choice is None:
        return use
    path = fields.name_of("tool_choice")
    match choice:
        case "none" | "auto":
            return replace(use, choice=choice)
        case "required":
            if not tools:
                raise invalid(f"{path} is required, and tools has none", param=path)
            return replace(use, choice="required")
        case str():
            raise invalid(f"{path} must be none, auto, required or an object, got {shown(choice)}", param=path)
        case dict():
            return _read_choice(fields.inner(choice, path), use)
        case _:
            raise wrong_type(path, "a string or an object", choice)


def _read_list(fields: Fields) -> tuple[tuple[Tool, ...], dict[str, str]]:
    """The tools, and where in the body the schema of each one is."""
    raw = fields.value("tools")
    path = fields.name_of("tools")
    if raw is None:
        return (), {}
    if not isinstance(raw, list):
        raise wrong_type(path, "a list", raw)
    if len(raw) > MAX_TOOLS:
        raise invalid(f"{path} takes at most {MAX_TOOLS} tools, got {len(raw)}", param=path)
    tools: dict[str, Tool] = {}
    places: dict[str, str] = {}
    for index, item in enumerate(raw):
        tool = _read_tool(fields.inner(item, f"{path}.{index}"))
        if tool.name in tools:
            param = f"{path}.{index}.function.name"
            raise invalid(f"{param}: {shown(tool.name)} is the name of an earlier tool", param=param)
        tools[tool.name], places[tool.name] = tool, f"{path}.{index}.function.parameters"
    return tuple(tools.values()), places


def _read_tool(fields: Fields) -> Tool:
    kind = fields.required("type")
    if kind != "function":
        raise unsupported(fields.name_of("type"), f"tools of type {shown(kind)}; only functions")
    fields.known("cache_control")
    fields.required("function")
    function = fields.object("function")
    name = _read_name(function)
    return Tool(
        name,
        function.string("description", longest=MAX_DESCRIPTION) or "",
        function.mapping("parameters"),
        function.boolean("strict") or False,
    )


def _read_name(function: Fields) -> str:
    name, path = function.required("name"), function.name_of("name")
    if not isinstance(name, str):
        raise wrong_type(path, "a string", name)
    if not re.fullmatch(NAME, name):
        raise invalid(f"{path} must be 1 to 64 letters, digits, underscores and dashes, got {shown(name)}", param=path)
    return name


def _read_choice(choice: Fields, use: ToolUse) -> ToolUse:
    """A choice that is an object: one function by name, or a mode and the functions that it is about."""
    kind = choice.required("type")
    match kind:
        case "function":
            return replace(use, choice="named", named=_read_named(choice, use))
        case "allowed_tools":
            choice.required("allowed_tools")
            allowed = choice.object("allowed_tools")
            mode = allowed.required("mode")
            if mode not in ("auto", "required"):
                path = allowed.name_of("mode")
                raise invalid(f"{path} must be auto or required, got {shown(mode)}", param=path)
            return replace(use, tools=_read_allowed(allowed, use), choice=mode)
        case _:
            path = choice.name_of("type")
            raise unsupported(path, f"a choice of type {shown(kind)}; only function and allowed_tools")


def _read_allowed(allowed: Fields, use: ToolUse) -> tuple[Tool, ...]:
    raw, path = allowed.required("tools"), allowed.name_of("tools")
    if not isinstance(raw, list):
        raise wrong_type(path, "a list", raw)
    if not raw:
        raise invalid(f"{path} must hold at least one tool", param=path)
    names = set()
    for index, item in enumerate(raw):
        fields = allowed.inner(item, f"{path}.{index}")
        if fields.required("type") != "function":
            raise unsupported(fields.name_of("type"), "tools of another type than function")
        names.add(_read_named(fields, use))
    return tuple(tool for tool in use.tools if tool.name in names)


def _read_named(choice: Fields, use: ToolUse) -> str:
    """The name in `function` of a choice. Errors: 400 when no tool has it."""
    choice.required("function")
    function = choice.object("function")
    name = _read_name(function)
    if all(tool.name != name for tool in use.tools):
        path = function.name_of("name")
        raise invalid(f"{path}: tools has no function {shown(name)}", param=path)
    return name
