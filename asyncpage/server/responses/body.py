"""The body of `POST /v1/responses`: items and fields to a validated `Call`.

The route's dialect calls `read_response`; what it returns goes to the generate route.

INVARIANT: what the answer repeats of its request is what the call does: defaults are filled in, and nothing is
repeated that was ignored, but names and notes that are the client's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asyncpage.core.sampling import MAX_TOP_LOGPROBS
from asyncpage.messages import ChatPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.answer_format import read_answer_format
from asyncpage.server.generate.call_fields import Setting, read_model, read_options, read_sampling
from asyncpage.server.generate.reply_plan import plan_reply
from asyncpage.server.generate.template_fields import check_template, read_template_kwargs
from asyncpage.server.generate.unsupported import EVERYWHERE, refuse, refuse_elsewhere, unsupported
from asyncpage.server.json_body import JsonBody, check_values
from asyncpage.server.responses.input import read_input
from asyncpage.server.responses.tools import read_response_tools, shown_tools

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_NOTE = 1024
ANY_LENGTH = 2**31  # a body is bounded as a whole

_STATELESS = "keeping responses: send the whole conversation as input"
_REFUSED = {
    **EVERYWHERE,
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "stored prompts",
    "background": "answering in the background",
    "context_management": "compaction of the context",
    "moderation": "moderation",
}
_ELSEWHERE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "logprobs": "include",
}
LOGPROBS = "message.output_text.logprobs"
# More of what this server's answers never hold; nothing is left out by not adding it.
_NEVER_HELD = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


def read_response(body: JsonBody, setting: Setting) -> Call:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    model = read_model(fields, setting)
    refuse(fields, _REFUSED)
    refuse_elsewhere(fields, "/v1/responses", _ELSEWHERE)
    if fields.value("truncation") not in (None, "disabled"):
        raise unsupported("truncation", "leaving out parts of the input (only 'disabled' is)")
    check_template(setting, "input")
    use = read_response_tools(fields)
    text = _read_text(fields)
    structured = read_answer_format(fields, text["format"], "text.format")
    instructions = fields.string("instructions", longest=ANY_LENGTH)
    messages = read_input(fields)
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    prompt = ChatPrompt(tuple(messages), kwargs=read_template_kwargs(fields))
    plan = plan_reply(use, setting, prompt=prompt, structured=structured)
    max_tokens = fields.integer("max_output_tokens", low=1, high=2**31 - 1)
    logprobs = _read_logprobs(fields)
    sampling = read_sampling(fields, setting, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=None)
    if sampling.n != 1:
        raise invalid(f"a response is one choice: n must be 1, got {sampling.n}", param="n")
    repeated = {
        "background": False,
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        "max_tool_calls": fields.integer("max_tool_calls", low=1),
        "metadata": _read_metadata(fields),
        "parallel_tool_calls": use.is_parallel,
        "previous_response_id": None,
        "prompt_cache_key": fields.string("prompt_cache_key", longest=MAX_NOTE),
        "reasoning": _read_reasoning(fields),
        "safety_identifier": fields.string("safety_identifier", longest=MAX_NOTE),
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": text,
        **shown_tools(body.fields, use),
        "top_logprobs": logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": fields.string("user", longest=MAX_NOTE),
    }
    for name in ("store", "service_tier", "stream_options", "prompt_cache_retention", "prompt_cache_options"):
        fields.value(name)
    call = Call(
        model=model,
        prompts=(replace(prompt, tools=plan.template_tools),),
        sampling=sampling,
        options=read_options(fields, setting),
        output=Output(stream=fields.boolean("stream") or False, logprobs=logprobs, repeated=repeated),
        ignored=tuple(fields.unread()),
    )
    check_values(body)
    return plan.applied_to(call)


def _read_text(fields: Fields) -> dict[str, Any]:
    """The `text` field, as the answer repeats it."""
    text = fields.object("text")
    verbosity = text.string("verbosity", longest=MAX_NOTE)
    asked = text.mapping("format")
    return {"format": {"type": "text"} if asked is None else asked, **({"verbosity": verbosity} if verbosity else {})}


def _read_logprobs(fields: Fields) -> int | None:
    wanted = fields.strings("include", most=MAX_METADATA) or ()
    for name in wanted:
        if name != LOGPROBS and name not in _NEVER_HELD:
            raise invalid(f"include: {shown(name)} is nothing that can be included", param="include")
    top = fields.integer("top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if LOGPROBS in wanted:
        return top or 0
    if top:
        raise invalid(f"top_logprobs needs include to hold '{LOGPROBS}'", param="top_logprobs")
    return None


def _read_metadata(fields: Fields) -> dict[str, str]:
    metadata = fields.mapping("metadata") or {}
    if len(metadata) > MAX_METADATA:
        raise invalid(f"metadata takes at most {MAX_METADATA} pairs, got {len(metadata)}", param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise invalid(f"metadata keys have at most {MAX_METADATA_KEY} characters", param="metadata")
        if not isinstance(value, str):
            raise wrong_type("metadata", "an object of strings", value)
        if len(value) > MAX_METADATA_VALUE:
            raise invalid(f"metadata values have at most {MAX_METADATA_VALUE} characters", param="metadata")
    return metadata


def _read_reasoning(fields: Fields) -> dict[str, Any]:
    """How much the model thinks is up to the model; what the client asked for is noted."""
    reasoning = fields.object("reasoning")
    reasoning.known("generate_summary")
    return {name: reasoning.string(name, longest=MAX_NOTE) for name in ("effort", "summary")}
