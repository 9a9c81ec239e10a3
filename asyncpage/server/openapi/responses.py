"""`POST /v1/responses`: items in, a response object out.

INVARIANT: what the API has beside is named here as refused, so that its clients can tell.
"""

from __future__ import annotations

from asyncpage.core.sampling import MAX_TOP_LOGPROBS
from asyncpage.server.generate.template_fields import MAX_NAME
from asyncpage.server.generate.tool_fields import MAX_TOOLS
from asyncpage.server.openapi import structured, tools
from asyncpage.server.openapi.chat import CONVERSATION
from asyncpage.server.openapi.part import Part, operation
from asyncpage.server.openapi.sampling import DELIVERY, ENGINE, INT_MAX, REFUSED, SAMPLING
from asyncpage.server.openapi.schema import (
    Json,
    answer,
    any_of,
    anything,
    array,
    integer,
    mapping,
    optional,
    ref,
    refused,
    request,
    string,
    word,
)
from asyncpage.server.responses.body import LOGPROBS, MAX_METADATA, MAX_NOTE

_ID = string(maxLength=MAX_NAME, examples=["call_1"])
_TEXT_PART = request({"type": word("", "input_text", "output_text", "text"), "text": string()}, "type", "text")
_REFUSAL_PART = request({"type": word("", "refusal"), "refusal": string()}, "type", "refusal")
_CONTENT = any_of("A text or parts of one.", string(), array(any_of("", _TEXT_PART, _REFUSAL_PART)))

_INPUT_ITEMS: dict[str, Json] = {
    "InputMessage": request(
        {
            "type": word("Understood where left out.", "message"),
            "role": word("", "user", "assistant", "system", "developer"),
            "content": _CONTENT,
        },
        "role",
        "content",
    ),
    "InputCall": request(
        {
            "type": word("", "function_call"),
            "call_id": _ID,
            "name": string(maxLength=MAX_NAME, examples=["get_weather"]),
            "arguments": string("JSON, as a text.", examples=["{}"]),
        },
        "type",
        "call_id",
        "name",
    ),
    "InputCallOutput": request(
        {
            "type": word("", "function_call_output"),
            "call_id": _ID,
            "output": _CONTENT,
            "name": string("Of the tool, where its call is not in the input.", maxLength=MAX_NAME),
        },
        "type",
        "call_id",
        "output",
    ),
    "InputReasoning": request(
        {
            "type": word("", "reasoning"),
            "content": array(anything(), "Texts of what was thought."),
            "summary": array(anything(), "The same in short; read where there is no content."),
        },
        "type",
        text="What the assistant thought, as an earlier response told it.",
    ),
}

_TOOL = request(
    {
        "type": word("", "function"),
        **tools.ABOUT,
        "parameters": tools.PARAMETERS,
    },
    "type",
    "name",
)
_FORMAT = any_of(
    "",
    request({"type": word("", "text")}, "type"),
    request({"type": word("", "json_object"), "schema": structured.SCHEMA}, "type"),
    request({"type": word("", "json_schema"), **structured.NAMED}, "type", "schema"),
)
_NAMED = request({"type": word("", "function"), "name": tools.TOOL_NAME}, "type", "name")
_CHOICE = any_of(
    "Whether the model may, must or may not call tools, which one it must call, or among which ones it has the choice.",
    word("", "none", "auto", "required"),
    _NAMED,
    request(
        {
            "type": word("", "allowed_tools"),
            "mode": word("", "auto", "required"),
            "tools": array(_NAMED, low=1),
        },
        "type",
        "mode",
        "tools",
    ),
    examples=["auto"],
)
_NOTE = string("Repeated in the answer; without any other effect.", maxLength=MAX_NOTE)

_OUTPUT_PART = answer(
    {
        "type": word("", "output_text", "reasoning_text"),
        "text": string(),
        "annotations": array({}, "Always empty."),
        "logprobs": array({}, "As include asked for them."),
    },
    leaves_out=("annotations", "logprobs"),
)

_SCHEMAS: dict[str, Json] = {
    **_INPUT_ITEMS,
    "ResponseRequest": request(
        {
            "model": DELIVERY["model"],
            "input": any_of(
                "A text, or the conversation as items: the server keeps none.",
                string(),
                array(any_of("", *(ref(name) for name in _INPUT_ITEMS)), low=1),
                examples=["Name three rivers."],
            ),
            "instructions": string("A system message in front."),
            "stream": DELIVERY["stream"],
            "max_output_tokens": integer("Tokens of the answer, at most.", 1, INT_MAX, examples=[64]),
            **SAMPLING,
            "n": integer("A response is one choice.", 1, 1, examples=[1]),
            "include": array(
                string(), f"'{LOGPROBS}' asks for log-probabilities.", high=MAX_METADATA, examples=[[LOGPROBS]]
            ),
            "top_logprobs": integer("With so many alternatives.", 0, MAX_TOP_LOGPROBS, examples=[2]),
            "text": request({"format": _FORMAT, "verbosity": _NOTE}, text="What the answer is."),
            **structured.EXTENSIONS,
            "tools": array(_TOOL, "Functions that the model may call.", high=MAX_TOOLS),
            "tool_choice": _CHOICE,
            "parallel_tool_calls": tools.OFFERED["parallel_tool_calls"],
            "max_tool_calls": integer("Noted.", 1),
            "chat_template_kwargs": CONVERSATION["chat_template_kwargs"],
            "reasoning": request({"effort": _NOTE, "summary": _NOTE}),
            "metadata": mapping(string(), "Repeated in the answer.", examples=[{"run": "7"}]),
            "user": _NOTE,
            "safety_identifier": _NOTE,
            "prompt_cache_key": _NOTE,
            **{
                name: anything("Accepted without effect.")
                for name in (
                    "store",
                    "service_tier",
                    "stream_options",
                    "prompt_cache_retention",
                    "prompt_cache_options",
                )
            },
            **ENGINE,
            "truncation": word("Nothing is left out of the input.", "disabled"),
            "previous_response_id": refused("keeping responses"),
            "conversation": refused("keeping responses"),
            "prompt": refused("stored prompts"),
            "background": refused("answering in the background"),
            "context_management": refused("compaction of the context"),
            "moderation": refused("moderation"),
            "messages": refused("here; see input"),
            "max_tokens": refused("here; see max_output_tokens"),
            "max_completion_tokens": refused("here; see max_output_tokens"),
            "response_format": refused("here; see text.format"),
            "logprobs": refused("here; see include"),
            **{
                name: schema
                for name, schema in REFUSED.items()
                if name not in ("audio", "web_search_options", "modalities")
            },
        },
        "input",
    ),
    "OutputItem": answer(
        {
            "id": string(),
            "type": word("", "message", "reasoning", "function_call"),
            "status": word("", "in_progress", "completed", "incomplete"),
            "role": word("Of a message.", "assistant"),
            "content": array(_OUTPUT_PART, "Of a message, and of what was thought."),
            "summary": array({}, "Always empty."),
            "encrypted_content": {"type": "null"},
            "call_id": string("Of a call: send it back with the output."),
            "name": string("Of a call: the tool."),
            "arguments": string("Of a call: JSON, as a text."),
        },
        leaves_out=("role", "content", "summary", "encrypted_content", "call_id", "name", "arguments"),
    ),
    "Response": answer(
        {
            "id": string(),
            "object": word("", "response"),
            "created_at": integer("Seconds since the epoch."),
            "status": word("", "in_progress", "completed", "incomplete", "failed"),
            "error": optional(answer({"code": string(), "message": string()})),
            "incomplete_details": optional(answer({"reason": word("", "max_output_tokens")})),
            "model": string(),
            "output": array(ref("OutputItem")),
            "usage": optional(
                answer(
                    {
                        "input_tokens": integer(),
                        "input_tokens_details": {"type": "object"},
                        "output_tokens": integer(),
                        "output_tokens_details": {"type": "object"},
                        "total_tokens": integer(),
                    }
                )
            ),
        },
        text="With what the request asked for, repeated.",
    ),
    "ResponseEvent": answer(
        {
            "type": string("Also the event's name.", examples=["response.output_text.delta"]),
            "sequence_number": integer("From 0, without a gap."),
        }
    ),
}

PART = Part(
    "Responses",
    "The OpenAI API's newer form: items in, a response with items out. Nothing is kept between requests.",
    {
        "/v1/responses": {
            "post": operation(
                "createResponse",
                "Answer a text or items",
                ref("Response"),
                body="ResponseRequest",
                example={"input": "Name three rivers.", "max_output_tokens": 64},
                stream=ref("ResponseEvent"),
                runs=True,
            )
        }
    },
    _SCHEMAS,
)
