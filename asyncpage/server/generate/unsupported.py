"""Fields that this version knows and cannot honour: refused by name, because ignoring them would break a promise.

The body readers call `refuse_unsupported` before they read anything else.

INVARIANT: a field that constrains the answer is either enforced or refused; only fields without such an effect are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncpage.errors import RequestError
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields

_TOOLS = "tool calls"
_ADAPTERS = "adapters in this field (an adapter's name goes into model)"
_SAMPLERS = "this way of drawing tokens"

_REFUSED: dict[str, str] = {
    "functions": f"{_TOOLS} by functions (tools has them)",
    "adapter": _ADAPTERS,
    "adapters": _ADAPTERS,
    "lora": _ADAPTERS,
    "lora_request": _ADAPTERS,
    "use_beam_search": _SAMPLERS,
    "logits_processors": _SAMPLERS,
    "audio": "audio",
    "web_search_options": "web search",
    "chat_template": "a chat template in the request",
}

# Accepted without effect: they steer a service around the model, or say what clients may leave to the server.
WITHOUT_EFFECT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "reasoning_effort",
    "verbosity",
    "safety_identifier",
    "prompt_cache_key",
    "prediction",
    "request_id",
)


def refuse_unsupported(fields: Fields) -> None:
    """Errors: 400 with code `unsupported` and the field's name as `param`."""
    for name, what in _REFUSED.items():
        value = fields.value(name)
        if value is not None and value is not False and value != []:
            raise unsupported(fields.name_of(name), what)
    if fields.value("function_call") not in (None, "none", "auto"):
        raise unsupported("function_call", f"{_TOOLS} by function_call (tool_choice has them)")
    if fields.value("modalities") not in (None, ["text"]):
        raise unsupported("modalities", "anything but text")
    for name in WITHOUT_EFFECT:
        fields.value(name)


def refuse_elsewhere(fields: Fields, route: str, names: Mapping[str, str]) -> None:
    """Refuse each of `names` that a body has a value for; each comes with what has it instead. Errors: 400."""
    for name, own in names.items():
        if fields.value(name):
            raise invalid(f"{name} is not a field of {route}: see {own}", param=name)


def refuse_tools(fields: Fields) -> None:
    """For routes on which no tool can be called. Errors: as above."""
    for name, harmless in (("tools", (None, [])), ("tool_choice", (None, "none", "auto"))):
        if fields.value(name) not in harmless:
            raise unsupported(name, f"{_TOOLS} here (/v1/chat/completions has them)")
    fields.value("parallel_tool_calls")


def unsupported(param: str, what: str) -> RequestError:
    """The refusal of a field whose feature this version lacks."""
    return invalid(f"{param}: this version of asyncpage does not support {what}", param=param, code="unsupported")


EVERYWHERE: Mapping[str, str] = {
    name: what for name, what in _REFUSED.items() if what in (_ADAPTERS, _SAMPLERS) or name == "chat_template"
}
"""What no route that generates can do, whatever its other fields are called."""


def refuse(fields: Fields, names: Mapping[str, str]) -> None:
    """Refuse each of `names` that a body has a value for; each comes with what it would take.

    Errors: 400 with code `unsupported` and the field's name as `param`.
    """
    for name, what in names.items():
        if fields.value(name) not in (None, False, [], ""):
            raise unsupported(fields.name_of(name), what)
