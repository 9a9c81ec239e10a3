"""The turns of the Messages API, with the system's text, to the messages of a conversation.

`read_message` and `count_tokens` call `read_turns`.

INVARIANT: the messages have a role that templates know and string content; results of tools stand before the text
that came with them, and turns of one role that follow one another are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.template_fields import MAX_NAME

_ROLES = ("user", "assistant", "system")
_WITHOUT_EFFECT = ("cache_control", "citations", "signature", "is_error", "caller")
_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def read_turns(fields: Fields) -> list[dict[str, Any]]:
    """The conversation. Errors: 400 naming the turn, the block and the field."""
    raw = fields.required("messages")
    if not isinstance(raw, list):
        raise wrong_type("messages", "a list", raw)
    if not raw:
        raise invalid("messages must hold at least one message", param="messages")
    reading = _Reading()
    system = fields.value("system")
    if system is not None:
        reading.say("system", _read_texts(fields, system, "system"))
    for index, turn in enumerate(raw):
        reading.read(fields.inner(turn, f"messages.{index}"))
    return reading.messages


class _Reading:
    """The messages so far, and the names of the tools that were called in them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # by call

    def read(self, turn: Fields) -> None:
        role = turn.required("role")
        if role not in _ROLES:
            path = turn.name_of("role")
            raise invalid(f"{path} must be one of {', '.join(_ROLES)}; got {shown(role)}", param=path)
        content = turn.required("content")
        path = turn.name_of("content")
        match content:
            case str():
                self.say(role, content)
            case list():
                texts: list[str] = []
                for index, raw in enumerate(content):
                    self._block(role, _as_block(turn.inner(raw, f"{path}.{index}"), _BLOCKS[role]), texts)
                if texts or not content or role == "assistant":  # a turn that says nothing still is one
                    self.say(role, "\n".join(texts))
            case _:
                raise wrong_type(path, "a string or a list of blocks", content)

    def say(self, role: str, text: str) -> None:
        """More of what `role` says; it goes on with its last message where it has the word."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != role:
            self.messages.append({"role": role, "content": text})
        elif text:
            last["content"] = f"{last['content']}\n{text}" if last["content"] else text

    def _block(self, role: str, block: Fields, texts: list[str]) -> None:
        match block.value("type"):
            case "text":
                texts.append(_text_of(block, "text"))
            case "tool_result":
                self._result(block)
            case "thinking":
                self._assistant()["reasoning_content"] = _text_of(block, "thinking")
            case "tool_use":
                self._call(block)

    def _assistant(self) -> dict[str, Any]:
        self.say("assistant", "")
        return self.messages[-1]

    def _call(self, block: Fields) -> None:
        name, id = (block.required_string(field, longest=MAX_NAME) for field in ("name", "id"))
        self._names[id] = name
        function = {"name": name, "arguments": block.mapping("input") or {}}
        call = {"id": id, "type": "function", "function": function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def _result(self, block: Fields) -> None:
        id = block.required_string("tool_use_id", longest=MAX_NAME)
        content = block.value("content")
        text = "" if content is None else _read_texts(block, content, block.name_of("content"))
        message = {"role": "tool", "tool_call_id": id, "content": text}
        if id in self._names:
            message["name"] = self._names[id]
        self.messages.append(message)


def _read_texts(fields: Fields, content: Any, path: str) -> str:
    match content:
        case str():
            return content
        case list():
            blocks = (_as_block(fields.inner(raw, f"{path}.{index}"), ("text",)) for index, raw in enumerate(content))
            return "\n".join(_text_of(block, "text") for block in blocks)
        case _:
            raise wrong_type(path, "a string or a list of text blocks", content)


def _as_block(block: Fields, kinds: tuple[str, ...]) -> Fields:
    kind = block.required("type")
    if kind not in kinds:
        path = block.name_of("type")
        raise invalid(
            f"{path}: blocks of type {shown(kind)} are not supported here; supported: {', '.join(kinds)}",
            param=path,
            code="unsupported",
        )
    block.known(*_WITHOUT_EFFECT)
    return block


def _text_of(block: Fields, name: str) -> str:
    text = block.required(name)
    if not isinstance(text, str):
        raise wrong_type(block.name_of(name), "a string", text)
    return text
