"""Conversations with tools as a model's chat template can show them: in its own way, or else in words.

`chat_template` sends each through before it renders it.

INVARIANT: what a conversation says of tools, calls and results is in the messages that come out; nothing that a
template would leave out silently stays in a field that it does not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from asyncpage.messages import ChatPrompt
from asyncpage.text.template_traits import SHORT_ID, TemplateTraits, is_result
from asyncpage.text.tools.parser import ToolParser

Message = Mapping[str, Any]

_TELLING = """\
You can call functions. These are there, each described by a JSON object on a line of its own:
{tools}

To call one, write its name and its arguments, which must fit its parameters, in exactly this form:
{example}
Then stop: what it returns comes in the next message. Answer in plain text where no function is needed."""


def speaks_of_tools(prompt: ChatPrompt) -> bool:
    return bool(prompt.tools) or any("tool_calls" in message or is_result(message) for message in prompt.messages)


def as_template_shows(prompt: ChatPrompt, traits: TemplateTraits, parser: ToolParser) -> ChatPrompt:
    """The same conversation for a template with `traits`, whose model writes calls as `parser` reads them."""
    messages: Sequence[Message] = prompt.messages
    # A template that tells of no tools may yet show calls, in a format in which its model was not asked for them.
    if not (traits.shows_tools and traits.shows_calls):
        messages = tuple(_in_words(messages, parser))
    elif traits.takes_text_arguments or traits.takes_short_ids:
        messages = tuple(_fitting(message, traits) for message in messages)
    if prompt.tools and not traits.shows_tools:
        messages = _told(messages, _telling(prompt.tools, parser), traits)
    return replace(prompt, messages=tuple(messages))


def _fitting(message: Message, traits: TemplateTraits) -> Message:
    """Past calls and results in the form that the template insists on."""
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [_fitting_call(call, traits) for call in message["tool_calls"]]
    if traits.takes_short_ids and isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _short(message["tool_call_id"])
    return changed


def _fitting_call(call: Mapping[str, Any], traits: TemplateTraits) -> Mapping[str, Any]:
    changed, function = dict(call), dict(call["function"])
    if traits.takes_text_arguments and not isinstance(function["arguments"], str):
        function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    if traits.takes_short_ids:
        changed["id"] = _short(call.get("id", ""))
    return {**changed, "function": function}


def _short(id: str) -> str:
    """Nine letters and digits; equal ids stay equal, and one that has the form stays as it is."""
    if len(id) == len(SHORT_ID) and id.isalnum():
        return id
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[: len(SHORT_ID)]


def _in_words(messages: Sequence[Message], parser: ToolParser) -> Iterator[Message]:
    """Calls as the assistant's own words, results as the user's, those of one turn in one message."""
    results: list[str] = []
    for message in messages:
        if is_result(message):
            results.append(f"<tool_response>\n{message.get('content') or ''}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        calls = message.get("tool_calls")
        if not calls:
            yield message
            continue
        said = [message["content"]] if message.get("content") else []
        said += [_call_text(call["function"], parser) for call in calls]
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        yield {**kept, "content": "\n".join(said)}
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _call_text(function: Mapping[str, Any], parser: ToolParser) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):  # no JSON object: it is shown as it was written
        return f"{function['name']}: {arguments}"
    return parser.call_text(function["name"], arguments)


def _telling(tools: Sequence[Mapping[str, Any]], parser: ToolParser) -> str:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return _TELLING.format(tools=lines, example=parser.call_text("FUNCTION", {"ARGUMENT": "VALUE"}))


def _told(messages: Sequence[Message], telling: str, traits: TemplateTraits) -> tuple[Message, ...]:
    """`telling` in the system message, or before the first message where the template takes none."""
    role = "user" if traits.refuses_system else "system"
    first = messages[0] if messages else {}
    if first.get("role") != role:
        return ({"role": role, "content": telling}, *messages)
    parts = (telling, first["content"]) if traits.refuses_system else (first["content"], telling)
    return ({**first, "content": "\n\n".join(filter(None, parts))}, *messages[1:])
