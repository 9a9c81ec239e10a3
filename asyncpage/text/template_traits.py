"""What a chat template can show, and how it ends, found by trying it on small conversations.

`chat_template` asks once a template, or once for each set of template variables.

INVARIANT: a template that refuses a trial has not the trait that was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt

MOST_WORD = 64
"""Characters of a template variable that may be a switch."""

MOST_END = 200
"""Characters of a prompt's end, where it cannot be told from what is before it."""

TRIAL_CALL = ("probe_function", {"probe": "probe_value"})

_NAME, _VALUE = TRIAL_CALL[0], TRIAL_CALL[1]["probe"]
_LONG_ID, SHORT_ID = "call_0123456789abcdef01234567", "abcdefghi"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string", "description": "probe"}}},
    },
}
Message = Mapping[str, Any]

_USER: Message = {"role": "user", "content": "probe"}


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """`shows_tools`: what tools there are. `shows_calls`: earlier calls of them, with their arguments.

    `takes_text_arguments`: these must be a JSON text, not an object. `takes_short_ids`: calls must have names of nine
    letters and digits. `refuses_system`: there must be no system message. `call_texts`: how it writes
    `TRIAL_CALL`, with and without what it writes before every answer.
    """

    shows_tools: bool
    shows_calls: bool
    takes_text_arguments: bool
    takes_short_ids: bool
    refuses_system: bool
    call_texts: tuple[str, ...] = ()


Options = tuple[tuple[str, str | int | float | bool], ...]


def find_traits(render: Callable[[ChatPrompt], str]) -> TemplateTraits:
    """The traits of the template that `render` renders with; it raises `RequestError` for what the template refuses."""

    def tried(*messages: Message, tools: tuple[Message, ...] = (), opens: bool = True) -> str | None:
        try:
            return render(ChatPrompt(messages, tools=tools, add_generation_prompt=opens))
        except RequestError:
            return None

    def asked(id: str, arguments: Any) -> Message:
        call = {"id": id, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def shows_call(id: str, arguments: Any) -> bool:
        result = {"role": "tool", "content": "probe", "tool_call_id": id}
        text = tried(_USER, asked(id, arguments), result, tools=(_TOOL,))
        # The name is among the tools too, the value only in the call.
        return text is not None and _VALUE in text

    told = tried(_USER, tools=(_TOOL,))
    ways = [(id, is_text) for is_text in (False, True) for id in (_LONG_ID, SHORT_ID)]
    arguments = {False: {"probe": _VALUE}, True: f'{{"probe": "{_VALUE}"}}'}
    way = next(((id, is_text) for id, is_text in ways if shows_call(id, arguments[is_text])), None)
    called = tried(_USER, asked(way[0], arguments[way[1]]), tools=(_TOOL,), opens=False) if way is not None else None
    before = tried(_USER, tools=(_TOOL,), opens=False)
    call_texts = () if not told or not called or not before else (called[len(before) :], _behind_common(told, called))
    return TemplateTraits(
        shows_tools=told is not None and told != tried(_USER),
        shows_calls=way is not None,
        takes_text_arguments=way is not None and way[1],
        takes_short_ids=way is not None and way[0] == SHORT_ID,
        refuses_system=tried({"role": "system", "content": "probe"}, _USER) is None and tried(_USER) is not None,
        call_texts=call_texts,
    )


def _behind_common(one: str, other: str) -> str:
    """The rest of `other` from where it is no longer like `one`."""
    same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
    return other[same:]


def find_end(render: Callable[[ChatPrompt], str], is_behind_result: bool, options: Options) -> str:
    """What the template writes behind a user's message, or behind the result of a tool; "" when it refuses to.

    `options`: template variables.
    """
    call = {"id": SHORT_ID, "type": "function", "function": {"name": _NAME, "arguments": {"probe": _VALUE}}}
    result = (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "probe", "tool_call_id": SHORT_ID},
    )
    prompt = ChatPrompt((_USER, *(result if is_behind_result else ())), kwargs=dict(options))
    try:
        without = render(replace(prompt, add_generation_prompt=False))
        text = render(prompt)
    except RequestError:
        return find_end(render, False, options) if is_behind_result else ""
    return text[len(without) :] if text.startswith(without) else text[-MOST_END:]


def plain_options(kwargs: Mapping[str, Any]) -> Options:
    """The template variables of a request that switch something: short and simple ones."""
    return tuple(
        sorted(
            (name, value)
            for name, value in kwargs.items()
            if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MOST_WORD)
        )
    )


def is_result(message: Mapping[str, Any]) -> bool:
    """Whether a message says what a tool returned."""
    return message.get("role") in ("tool", "function")
