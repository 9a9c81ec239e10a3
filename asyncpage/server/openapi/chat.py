"""`POST /v1/chat/completions`: conversations in, a message out.

INVARIANT: the streamed and the whole answer are described by the same words, piece by piece and at once.
"""

from __future__ import annotations

from asyncpage.core.sampling import MAX_TOP_LOGPROBS
from asyncpage.server.generate.template_fields import MAX_NAME
from asyncpage.server.openai.chat_body import ROLES
from asyncpage.server.openapi import structured, tools
from asyncpage.server.openapi.answers import HEAD, STOP_REASON, TOKEN_IDS
from asyncpage.server.openapi.part import Part, operation
from asyncpage.server.openapi.sampling import DELIVERY, ENGINE, INT_MAX, REFUSED, SAMPLING, WITHOUT_EFFECT
from asyncpage.server.openapi.schema import (
    Json,
    answer,
    any_of,
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

_USER: Json = {"role": "user", "content": "Name three rivers."}

# How a conversation becomes a prompt; /tokenize takes these too.
CONVERSATION: dict[str, Json] = {
    "messages": array(ref("Message"), "The conversation so far.", low=1, examples=[[_USER]]),
    "add_generation_prompt": boolean("Open the assistant's turn (true unless given).", examples=[True]),
    "continue_final_message": boolean("Continue the last message, the assistant's.", examples=[False]),
    "chat_template_kwargs": {
        "type": "object",
        "description": "Further variables for the model's chat template.",
        "examples": [{"enable_thinking": False}],
    },
    "add_special_tokens": boolean("Put around the rendered template what the model wants around a text."),
}

_TEXT_PART = request({"type": word("", "text"), "text": string(examples=["Hello"])}, "type", "text")
_REFUSAL_PART = request({"type": word("", "refusal"), "refusal": string()}, "type", "refusal")

_SCHEMAS: dict[str, Json] = {
    "Message": request(
        {
            "role": word("developer is system by its newer name.", *ROLES, examples=["user"]),
            "content": any_of(
                "Needed but of assistants and tools.",
                string(),
                array(any_of("", _TEXT_PART, _REFUSAL_PART)),
                examples=["Name three rivers."],
            ),
            "name": string(maxLength=MAX_NAME, examples=["ann"]),
            "tool_call_id": string("Of a tool's message: the call that it answers.", maxLength=MAX_NAME),
            "tool_calls": array(ref("ToolCall"), "Of an assistant's message."),
            "function_call": {
                **tools.CALLED,
                "description": "Of an assistant's message: the older form of tool_calls.",
            },
            "reasoning_content": string("Of an assistant's message: what it thought."),
        },
        "role",
    ),
    "ChatRequest": request(
        {
            **DELIVERY,
            **CONVERSATION,
            "max_completion_tokens": integer("Tokens of the answer, at most.", 1, INT_MAX, examples=[64]),
            "max_tokens": integer("The same by its older name.", 1, INT_MAX, examples=[64]),
            **SAMPLING,
            "logprobs": boolean("Show each token's log-probability.", examples=[True]),
            "top_logprobs": integer("And those of so many alternatives.", 0, MAX_TOP_LOGPROBS, examples=[2]),
            **tools.FIELDS,
            "include_reasoning": boolean("False: leave out what the model thought first.", examples=[True]),
            **structured.FIELDS,
            **ENGINE,
            **WITHOUT_EFFECT,
            **REFUSED,
            "echo": refused("echo of a conversation; /v1/completions has it"),
        },
        "messages",
    ),
    "ChatMessage": answer(
        {
            "role": word("", "assistant"),
            "content": {"type": ["string", "null"]},
            "refusal": {"type": "null"},
            "reasoning_content": {"type": ["string", "null"], "description": "What the model thought first."},
            "tool_calls": array(ref("MadeToolCall")),
        },
        leaves_out=("reasoning_content", "tool_calls"),
    ),
    "ChatCompletion": answer(
        {
            **HEAD,
            "object": word("", "chat.completion"),
            "choices": array(
                answer(
                    {
                        "index": integer(),
                        "message": ref("ChatMessage"),
                        "logprobs": optional(ref("ChatLogprobs")),
                        "finish_reason": word("", "stop", "length", "tool_calls"),
                        "stop_reason": STOP_REASON,
                        "token_ids": TOKEN_IDS,
                    },
                    leaves_out=("token_ids",),
                )
            ),
            "usage": ref("Usage"),
            "prompt_logprobs": ref("PromptLogprobs"),
            "prompt_token_ids": TOKEN_IDS,
        },
        leaves_out=("prompt_logprobs", "prompt_token_ids"),
    ),
    "ChatChunk": answer(
        {
            **HEAD,
            "object": word("", "chat.completion.chunk"),
            "choices": array(
                answer(
                    {
                        "index": integer(),
                        "delta": {"type": "object", "description": "The role first, then pieces of the message."},
                        "logprobs": optional(ref("ChatLogprobs")),
                        "finish_reason": optional(word("", "stop", "length", "tool_calls")),
                        "stop_reason": STOP_REASON,
                        "token_ids": TOKEN_IDS,
                    },
                    leaves_out=("stop_reason", "token_ids"),
                )
            ),
            "usage": optional(ref("Usage")),
            "prompt_token_ids": TOKEN_IDS,
        },
        leaves_out=("usage", "prompt_token_ids"),
    ),
}

PART = Part(
    "Chat",
    "A conversation in, the assistant's next message out.",
    {
        "/v1/chat/completions": {
            "post": operation(
                "createChatCompletion",
                "Answer a conversation",
                ref("ChatCompletion"),
                body="ChatRequest",
                example={"messages": [_USER], "max_completion_tokens": 64},
                stream=ref("ChatChunk"),
                runs=True,
            )
        }
    },
    {**_SCHEMAS, **tools.SCHEMAS, **structured.SCHEMAS},
)
