"""The body of `POST /v1/chat/completions`: messages and fields to a validated `Call`.

The chat route calls `read_chat`; what it returns goes to the generate route.

INVARIANT: the messages in a call have a known role and string content, so a template sees no other shape.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asyncpage.core.sampling import MAX_TOP_LOGPROBS
from asyncpage.messages import ChatPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.call_fields import (
    Setting,
    check_choices,
    read_model,
    read_options,
    read_sampling,
    read_stream,
)
from asyncpage.server.generate.reply_plan import plan_reply
from asyncpage.server.generate.structured_fields import read_structured
from asyncpage.server.generate.template_fields import MAX_NAME, check_template, read_arguments, read_template_kwargs
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.generate.unsupported import refuse_unsupported, unsupported
from asyncpage.server.json_body import JsonBody, check_values

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_chat(body: JsonBody, setting: Setting) -> Call:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    model = read_model(fields, setting)
    refuse_unsupported(fields)
    if fields.boolean("echo"):
        raise unsupported("echo", "echo on chat completions (/v1/completions has it)")
    stream = read_stream(fields)
    prompt = read_messages(fields, setting)
    wants_reasoning = fields.boolean("include_reasoning") is not False
    plan = plan_reply(
        read_tools(fields), setting, wants_reasoning=wants_reasoning, prompt=prompt, structured=read_structured(fields)
    )
    logprobs = _read_logprobs(fields)
    prompt_logprobs = fields.integer("prompt_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if prompt_logprobs is not None and stream.stream:
        raise invalid("prompt_logprobs needs stream to be false", param="prompt_logprobs")
    sampling = read_sampling(
        fields, setting, max_tokens=_read_max_tokens(fields), logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )
    check_choices(1, sampling.n, setting)
    call = Call(
        model=model,
        prompts=(replace(prompt, tools=plan.template_tools),),
        sampling=sampling,
        options=read_options(fields, setting),
        output=Output(
            stream=stream.stream,
            include_usage=stream.include_usage,
            continuous_usage=stream.continuous_usage,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            return_token_ids=fields.boolean("return_token_ids") or False,
        ),
        ignored=tuple(fields.unread()),
    )
    check_values(body)
    return plan.applied_to(call)


def _read_max_tokens(fields: Fields) -> int | None:
    """max_completion_tokens is the newer name and wins; both are checked."""
    older = fields.integer("max_tokens", low=1, high=2**31 - 1)
    newer = fields.integer("max_completion_tokens", low=1, high=2**31 - 1)
    return older if newer is None else newer


def _read_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise invalid("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (top or 0) if wanted else None


def read_messages(fields: Fields, setting: Setting) -> ChatPrompt:
    """The conversation of a body and how it is to be rendered, without its tools. Errors: 400 naming the field."""
    raw = fields.required("messages")
    if not isinstance(raw, list):
        raise wrong_type("messages", "a list", raw)
    if not raw:
        raise invalid("messages must hold at least one message", param="messages")
    check_template(setting, "messages")
    messages = tuple(_read_message(fields.inner(item, f"messages.{index}")) for index, item in enumerate(raw))
    goes_on = fields.boolean("continue_final_message") or False
    opens = fields.boolean("add_generation_prompt")
    if goes_on and opens:
        raise invalid(
            "continue_final_message and add_generation_prompt cannot both be true", param="continue_final_message"
        )
    if goes_on and messages[-1]["role"] != "assistant":
        raise invalid(
            "continue_final_message needs the last message to be the assistant's", param="continue_final_message"
        )
    return ChatPrompt(
        messages=messages,
        add_generation_prompt=not goes_on if opens is None else opens,
        continue_final_message=goes_on,
        kwargs=read_template_kwargs(fields),
        add_special=fields.boolean("add_special_tokens") or False,
    )


def _read_message(fields: Fields) -> dict[str, Any]:
    role = fields.required("role")
    if role not in ROLES:
        path = fields.name_of("role")
        raise invalid(f"{path} must be one of {', '.join(ROLES)}; got {shown(role)}", param=path)
    fields.known("annotations")  # notes on an answer that comes back
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _read_content(fields, needed=role not in ("assistant", "tool", "function"))
    for name in ("name", "tool_call_id"):
        value = fields.string(name, longest=MAX_NAME)
        if value is not None:
            message[name] = value
    if role == "assistant":
        calls = _read_tool_calls(fields)
        if calls:
            message["tool_calls"] = calls
        reasoning = fields.value("reasoning_content")
        if reasoning is not None:
            if not isinstance(reasoning, str):
                raise wrong_type(fields.name_of("reasoning_content"), "a string", reasoning)
            message["reasoning_content"] = reasoning
    return message


def _read_content(fields: Fields, *, needed: bool) -> str:
    content = fields.required("content") if needed else fields.value("content")
    path = fields.name_of("content")
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "\n".join(_read_part(fields.inner(part, f"{path}.{index}")) for index, part in enumerate(content))
        case _:
            raise wrong_type(path, "a string or a list of text parts", content)


def _read_part(fields: Fields) -> str:
    kind = fields.required("type")
    if kind not in ("text", "refusal"):
        path = fields.name_of("type")
        raise invalid(
            f"{path}: content parts of type {shown(kind)} are not supported; this server takes text parts",
            param=path,
            code="unsupported",
        )
    fields.known("cache_control")
    text = fields.required(kind)
    if not isinstance(text, str):
        raise wrong_type(fields.name_of(kind), "a string", text)
    return text


def _read_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Past tool calls, as templates expect them: arguments as an object where they are one."""
    raw = fields.value("tool_calls")
    path = fields.name_of("tool_calls")
    calls = []
    if not isinstance(raw, list | None):
        raise wrong_type(path, "a list", raw)
    for index, item in enumerate(raw or ()):
        call = fields.inner(item, f"{path}.{index}")
        call.known("type", "index")
        id = call.string("id", longest=MAX_NAME)
        calls.append({**({} if id is None else {"id": id}), **_read_called(call.object("function"))})
    if fields.value("function_call") is not None:  # the one call of an answer, before there were tools
        calls.append(_read_called(fields.object("function_call")))
    return calls


def _read_called(function: Fields) -> dict[str, Any]:
    name = function.required_string("name", longest=MAX_NAME)
    return {"type": "function", "function": {"name": name, "arguments": read_arguments(function)}}
