"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`: turns and fields to what is run or counted.

The dialect of messages calls `read_message`, the route that counts `read_counted`.

INVARIANT: what is counted is the prompt that the same body would run with.
"""

from __future__ import annotations

from dataclasses import replace

from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import ChatPrompt
from asyncpage.server.anthropic.tools import read_message_tools
from asyncpage.server.anthropic.turns import read_turns
from asyncpage.server.call import Call, Output
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields
from asyncpage.server.generate.answer_format import read_answer_format
from asyncpage.server.generate.call_fields import Setting, read_model, read_options, read_sampling
from asyncpage.server.generate.reply_plan import ReplyPlan, plan_reply
from asyncpage.server.generate.template_fields import check_template, read_template_kwargs
from asyncpage.server.generate.unsupported import EVERYWHERE, refuse, refuse_elsewhere
from asyncpage.server.json_body import JsonBody, check_values

_REFUSED = {**EVERYWHERE, "container": "containers", "mcp_servers": "servers of tools"}
_ELSEWHERE = {
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "logprobs": "/v1/chat/completions, which has it",
}
# Accepted without effect: they steer a service around the model, or what it may leave out of a long conversation.
_WITHOUT_EFFECT = ("metadata", "service_tier", "context_management", "speed", "inference_geo", "cache_control")


def read_message(body: JsonBody, setting: Setting) -> Call:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    model = read_model(fields, setting)
    refuse(fields, _REFUSED)
    refuse_elsewhere(fields, "/v1/messages", _ELSEWHERE)
    prompt, plan = _read_prompt(fields, setting)
    max_tokens = fields.integer("max_tokens", low=1, high=2**31 - 1)
    if max_tokens is None:
        raise invalid("max_tokens is required", param="max_tokens")
    sampling = read_sampling(
        fields,
        setting,
        max_tokens=max_tokens,
        logprobs=None,
        prompt_logprobs=None,
        stop_name="stop_sequences",
    )
    if sampling.n != 1:
        raise invalid(f"a message is one choice: n must be 1, got {sampling.n}", param="n")
    for name in _WITHOUT_EFFECT:
        fields.value(name)
    call = Call(
        model=model,
        prompts=(prompt,),
        sampling=sampling,
        options=read_options(fields, setting),
        output=Output(stream=fields.boolean("stream") or False),
        ignored=tuple(fields.unread()),
    )
    check_values(body)
    return plan.applied_to(call)


def read_counted(body: JsonBody, setting: Setting) -> ChatPrompt:
    """The prompt to count. Errors: as in `read_message`."""
    fields = Fields(body.fields)
    read_model(fields, setting)
    refuse(fields, _REFUSED)
    prompt, _ = _read_prompt(fields, setting)
    check_values(body)
    return prompt


def _read_prompt(fields: Fields, setting: Setting) -> tuple[ChatPrompt, ReplyPlan]:
    check_template(setting, "messages")
    asked = fields.object("thinking")
    asked.known("budget_tokens", "display")
    thinking = asked.value("type")
    use = read_message_tools(fields)
    messages = read_turns(fields)
    kwargs = read_template_kwargs(fields)
    if thinking == "disabled":
        kwargs = {"enable_thinking": False, **kwargs}
    # A last turn of the assistant's is the beginning of the answer.
    last = messages[-1]
    goes_on = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
    prompt = ChatPrompt(
        tuple(messages), add_generation_prompt=not goes_on, continue_final_message=goes_on, kwargs=kwargs
    )
    plan = plan_reply(
        use, setting, wants_reasoning=thinking != "disabled", prompt=prompt, structured=_read_format(fields)
    )
    return replace(prompt, tools=plan.template_tools), plan


def _read_format(fields: Fields) -> tuple[GrammarSource, str] | None:
    """The format of the answer, under its present name or the one that it had before."""
    path = "output_config.format"
    config = fields.object("output_config")
    config.known("effort")
    asked = config.mapping("format")
    if asked is None:
        older = fields.mapping("output_format")
        asked, path = (older, "output_format") if older is not None else ({"type": "text"}, path)
    return read_answer_format(fields, asked, path)
