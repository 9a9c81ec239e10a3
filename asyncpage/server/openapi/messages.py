"""`POST /v1/messages` and `/v1/messages/count_tokens`: turns of blocks in, a message of blocks out.

INVARIANT: what is counted is described as what is run.
"""

from __future__ import annotations

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
    boolean,
    integer,
    optional,
    ref,
    refused,
    request,
    string,
    word,
)

_NAME = string("Of the tool.", maxLength=MAX_NAME, examples=["get_weather"])
_ID = string(maxLength=MAX_NAME, examples=["toolu_1"])
_TEXT = request({"type": word("", "text"), "text": string()}, "type", "text")
_TEXTS = any_of("A text or blocks of text.", string(), array(_TEXT))

_FORMAT = any_of(
    "",
    request({"type": word("", "text")}, "type"),
    request({"type": word("", "json_object"), "schema": structured.SCHEMA}, "type"),
    request({"type": word("", "json_schema"), **structured.NAMED}, "type", "schema"),
)


def _turn(role: str, *blocks: Json) -> Json:
    content = any_of("", string(), array(any_of("", _TEXT, *blocks)), examples=["Name three rivers."])
    return request({"role": word("", role), "content": content}, "role", "content")


_PROMPT: dict[str, Json] = {
    "model": DELIVERY["model"],
    "messages": array(
        any_of("", ref("UserTurn"), ref("AssistantTurn"), ref("SystemTurn")),
        "The conversation; an assistant's last turn is the beginning of the answer.",
        low=1,
    ),
    "system": any_of("", _TEXTS, examples=["Be brief."]),
    "tools": array(
        request(
            {
                "type": word("", "custom"),
                **tools.ABOUT,
                "input_schema": {**tools.PARAMETERS, "description": "A JSON Schema of its arguments."},
            },
            "name",
            "input_schema",
        ),
        "Functions that the model may call.",
        high=MAX_TOOLS,
    ),
    "tool_choice": request(
        {
            "type": word("", "auto", "any", "tool", "none"),
            "name": tools.TOOL_NAME,
            "disable_parallel_tool_use": boolean("At most one call."),
        },
        "type",
    ),
    "thinking": request({"type": word("disabled leaves out what the model thinks.", "enabled", "disabled")}),
    "chat_template_kwargs": CONVERSATION["chat_template_kwargs"],
    "output_config": request({"format": _FORMAT}, text="What the answer is."),
    "output_format": any_of("The same by its older name.", _FORMAT),
    **structured.EXTENSIONS,
}

_REFUSED: dict[str, Json] = {
    "container": refused("containers"),
    "mcp_servers": refused("servers of tools"),
    **{name: schema for name, schema in REFUSED.items() if name not in ("audio", "web_search_options", "modalities")},
}

_BLOCK = answer(
    {
        "type": word("", "text", "thinking", "tool_use"),
        "text": string(),
        "thinking": string(),
        "signature": string("Always empty."),
        "id": string("Of a call: send it back with the result."),
        "name": string(),
        "input": {"type": "object"},
    },
    leaves_out=("text", "thinking", "signature", "id", "name", "input"),
)

_SCHEMAS: dict[str, Json] = {
    "UserTurn": _turn(
        "user",
        request(
            {"type": word("", "tool_result"), "tool_use_id": _ID, "content": _TEXTS},
            "type",
            "tool_use_id",
        ),
    ),
    "AssistantTurn": _turn(
        "assistant",
        request({"type": word("", "thinking"), "thinking": string()}, "type", "thinking"),
        request({"type": word("", "redacted_thinking")}, "type", text="Passed over."),
        request(
            {"type": word("", "tool_use"), "id": _ID, "name": _NAME, "input": {"type": "object"}},
            "type",
            "id",
            "name",
        ),
    ),
    "SystemTurn": _turn("system"),
    "MessageRequest": request(
        {
            **_PROMPT,
            "max_tokens": integer("Tokens of the answer, at most.", 1, INT_MAX, examples=[64]),
            "stream": DELIVERY["stream"],
            **{name: schema for name, schema in SAMPLING.items() if name not in ("stop", "n")},
            "stop_sequences": SAMPLING["stop"],
            "n": integer("A message is one choice.", 1, 1, examples=[1]),
            **ENGINE,
            **{
                name: anything("Accepted without effect.")
                for name in (
                    "metadata",
                    "service_tier",
                    "context_management",
                    "speed",
                    "inference_geo",
                    "cache_control",
                )
            },
            **_REFUSED,
            "max_completion_tokens": refused("here; see max_tokens"),
            "response_format": refused("here; see output_config.format"),
            "stop": refused("here; see stop_sequences"),
            "logprobs": refused("here; /v1/chat/completions has it"),
        },
        "messages",
        "max_tokens",
    ),
    "CountRequest": request({**_PROMPT, **_REFUSED}, "messages"),
    "AnthropicMessage": answer(
        {
            "id": string(),
            "type": word("", "message"),
            "role": word("", "assistant"),
            "model": string(),
            "content": array(_BLOCK),
            "stop_reason": optional(word("", "end_turn", "max_tokens", "stop_sequence", "tool_use")),
            "stop_sequence": optional(string()),
            "usage": answer(
                {
                    "input_tokens": integer("Cached ones are not among them."),
                    "cache_creation_input_tokens": integer(),
                    "cache_read_input_tokens": integer(),
                    "output_tokens": integer(),
                }
            ),
        }
    ),
    "MessageEvent": answer({"type": string("Also the event's name.", examples=["content_block_delta"])}),
    "TokenCount": answer({"input_tokens": integer()}),
}

PART = Part(
    "Messages",
    "The Anthropic API: turns of blocks in, a message of blocks out. Its errors have that API's shape: "
    '{"type": "error", "error": {"type", "message"}, "request_id"}.',
    {
        "/v1/messages": {
            "post": operation(
                "createMessage",
                "Answer a conversation of turns",
                ref("AnthropicMessage"),
                body="MessageRequest",
                example={"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 64},
                stream=ref("MessageEvent"),
                runs=True,
            )
        },
        "/v1/messages/count_tokens": {
            "post": operation(
                "countTokens",
                "The tokens that the same turns would run with",
                ref("TokenCount"),
                body="CountRequest",
                example={"messages": [{"role": "user", "content": "Name three rivers."}]},
                errors=("429",),
            )
        },
    },
    _SCHEMAS,
)
