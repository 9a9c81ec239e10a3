"""What a body may hold for the chat template, where the model has one: further variables, past calls of an assistant.

The readers of conversations call these, whatever their API calls a message.

INVARIANT: no variable of the server's own is replaced, and a past call's arguments are an object wherever they are one.
"""

from __future__ import annotations

from typing import Any

from asyncpage.errors import RequestError
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, wrong_type
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.json_body import check_values, parse_object

MAX_NAME = 256

# Template variables that belong to the server; a request may not replace them through chat_template_kwargs.
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template")


def check_template(setting: Setting, param: str) -> None:
    """Errors: 400 naming the field of the conversation when the model cannot be shown one."""
    if not setting.has_chat_template:
        raise invalid(
            "this model has no chat template; use /v1/completions, or serve it with --chat-template",
            param=param,
            code="no_chat_template",
        )


def read_template_kwargs(fields: Fields) -> dict[str, Any]:
    """Errors: 400 for a variable that is the server's."""
    kwargs = fields.mapping("chat_template_kwargs") or {}
    for name in kwargs:
        if name in _RESERVED:
            raise invalid(f"chat_template_kwargs may not set {name}", param=f"chat_template_kwargs.{name}")
    return kwargs


def read_arguments(call: Fields) -> Any:
    """A past call's `arguments`, as templates expect them: an object where they are one."""
    raw = call.value("arguments")
    match raw:
        case None | "":
            return {}
        case dict():
            return raw
        case str():
            try:
                parsed = parse_object(raw.encode("utf-8", "replace"))
                check_values(parsed)
            except RequestError:  # what the model wrote then was no JSON object: shown as it was
                return raw
            return parsed.fields
        case _:
            raise wrong_type(call.name_of("arguments"), "a string of JSON", raw)
