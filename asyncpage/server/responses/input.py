"""The input of the Responses API: a string or items, to the messages of a conversation.

`read_response` calls `read_input`.

INVARIANT: the messages have a role that templates know and string content; calls stand in the assistant's message
that made them, and whatever was thought before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.template_fields import MAX_NAME, read_arguments

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_WITHOUT_EFFECT = ("id", "status", "phase", "summary", "content", "encrypted_content")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def read_input(fields: Fields) -> list[dict[str, Any]]:
    """The conversation, without instructions. Errors: 400 naming the item and its field."""
    raw = fields.required("input")
    match raw:
        case str():
            return [{"role": "user", "content": raw}]
        case list():
            if not raw:
                raise invalid("input must hold at least one item", param="input")
            reading = _Reading()
            for index, item in enumerate(raw):
                reading.read(fields.inner(item, f"input.{index}"))
            if not reading.messages:
                raise invalid("input must hold more than what was thought", param="input")
            return reading.messages
        case _:
            raise wrong_type("input", "a string or a list of items", raw)


class _Reading:
    """The messages so far, and what the items to come depend on."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._thought: list[str] = []  # by the assistant, before what it says next
        self._names: dict[str, str] = {}  # of the called tools, by call

    def read(self, item: Fields) -> None:
        kind = item.value("type")
        if kind is None and "role" in item.names():
            kind = "message"
        if not isinstance(kind, str) or kind not in _READERS:
            reason = "this server takes messages, reasoning, and function calls with their outputs"
            if kind == "item_reference":
                reason = "this server keeps no responses; send the items themselves, as clients do when store is false"
            path = item.name_of("type")
            raise invalid(
                f"{path}: input items of type {shown(kind)} are not supported: {reason}",
                param=path,
                code="unsupported",
            )
        item.known(*_WITHOUT_EFFECT)
        _READERS[kind](self, item)

    def _message(self, item: Fields) -> None:
        role = item.required("role")
        if not isinstance(role, str) or role not in _ROLES:
            names = ", ".join(_ROLES)
            path = item.name_of("role")
            raise invalid(f"{path} must be one of {names}; got {shown(role)}", param=path)
        self._say(_ROLES[role], _read_text(item, "content"))

    def _call(self, item: Fields) -> None:
        name = item.required_string("name", longest=MAX_NAME)
        id = item.required_string("call_id", longest=MAX_NAME)
        self._names[id] = name
        if not (self.messages and self.messages[-1]["role"] == "assistant") or self._thought:
            self._say("assistant", "")
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": read_arguments(item)}}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _call_output(self, item: Fields) -> None:
        id = item.required_string("call_id", longest=MAX_NAME)
        message = {"role": "tool", "tool_call_id": id, "content": _read_text(item, "output")}
        name = self._names.get(id) or item.string("name", longest=MAX_NAME)
        if name:
            message["name"] = name
        self._thought.clear()
        self.messages.append(message)

    def _reasoning(self, item: Fields) -> None:
        """What open models think is text; anything else that is here only its maker can read."""
        for name in ("content", "summary"):
            parts = item.value(name)
            if parts is None:
                continue
            if not isinstance(parts, list):
                raise wrong_type(item.name_of(name), "a list", parts)
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            found = [text for text in texts if isinstance(text, str) and text]
            if found:
                self._thought += found
                return

    def _say(self, role: str, content: str) -> None:
        message: dict[str, Any] = {"role": role, "content": content}
        if self._thought and role == "assistant":
            message["reasoning_content"] = "\n".join(self._thought)
        self._thought.clear()
        self.messages.append(message)


_READERS: Mapping[str, Callable[[_Reading, Fields], None]] = {
    "message": _Reading._message,
    "function_call": _Reading._call,
    "function_call_output": _Reading._call_output,
    "reasoning": _Reading._reasoning,
}


def _read_text(item: Fields, name: str) -> str:
    content = item.required(name)
    path = item.name_of(name)
    match content:
        case str():
            return content
        case list():
            return "\n".join(_read_part(item.inner(part, f"{path}.{index}")) for index, part in enumerate(content))
        case _:
            raise wrong_type(path, "a string or a list of text parts", content)


def _read_part(part: Fields) -> str:
    kind = part.required("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        path = part.name_of("type")
        raise invalid(
            f"{path}: content parts of type {shown(kind)} are not supported; this server takes text parts",
            param=path,
            code="unsupported",
        )
    part.known("annotations", "logprobs")
    text = part.required(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise wrong_type(part.name_of(_TEXT_PARTS[kind]), "a string", text)
    return text
