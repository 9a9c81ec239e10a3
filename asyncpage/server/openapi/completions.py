"""`POST /v1/completions`: text or token ids in, their continuation out.

INVARIANT: the streamed and the whole answer are described by the same words, piece by piece and at once.
"""

from __future__ import annotations

from asyncpage.core.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS
from asyncpage.server.openapi import structured
from asyncpage.server.openapi.answers import HEAD, STOP_REASON, TOKEN_IDS
from asyncpage.server.openapi.part import Part, operation
from asyncpage.server.openapi.sampling import DELIVERY, ENGINE, INT_MAX, REFUSED, SAMPLING, WITHOUT_EFFECT
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

_IDS = array(integer(low=0, high=INT_MAX), low=1)

_CHOICE: dict[str, Json] = {
    "index": integer("Of choice c of prompt p: p * n + c."),
    "text": string(),
    "logprobs": optional(ref("CompletionLogprobs")),
    "finish_reason": word("", "stop", "length"),
    "stop_reason": STOP_REASON,
    "token_ids": TOKEN_IDS,
}

_SCHEMAS: dict[str, Json] = {
    "CompletionRequest": request(
        {
            **DELIVERY,
            "prompt": any_of(
                "One prompt or several, as texts or as token ids.",
                string(minLength=1),
                array(string(minLength=1), low=1),
                _IDS,
                array(_IDS, low=1),
                examples=["The sea"],
            ),
            "echo": boolean("Put the prompt in front of the answer.", examples=[True]),
            "max_tokens": integer("Tokens of the answer, at most: 16 unless given.", 0, INT_MAX, examples=[16]),
            **SAMPLING,
            "best_of": integer("Draw so many choices and show the n likeliest; not streamed.", 1, MAX_CHOICES),
            "logprobs": integer("Log-probabilities, with so many alternatives.", 0, MAX_TOP_LOGPROBS, examples=[1]),
            "suffix": {"enum": [None, ""], "description": "Not supported (text after the completion)."},
            "tools": array({}, "Not supported (tools without a conversation): refused unless empty.", high=0),
            "tool_choice": word("Accepted without effect.", "none", "auto"),
            "parallel_tool_calls": anything("Accepted without effect."),
            "functions": refused("tools without a conversation"),
            "function_call": word("", "none", "auto"),
            **structured.FIELDS,
            **ENGINE,
            **WITHOUT_EFFECT,
            **REFUSED,
        },
        "prompt",
    ),
    "Completion": answer(
        {
            **HEAD,
            "object": word("", "text_completion"),
            "choices": array(
                answer(
                    {**_CHOICE, "prompt_token_ids": TOKEN_IDS, "prompt_logprobs": ref("PromptLogprobs")},
                    leaves_out=("token_ids", "prompt_token_ids", "prompt_logprobs"),
                )
            ),
            "usage": ref("Usage"),
        }
    ),
    "CompletionChunk": answer(
        {
            **HEAD,
            "object": word("", "text_completion"),
            "choices": array(
                answer(
                    {
                        **_CHOICE,
                        "finish_reason": optional(_CHOICE["finish_reason"]),
                        "prompt_token_ids": TOKEN_IDS,
                    },
                    leaves_out=("stop_reason", "token_ids", "prompt_token_ids"),
                )
            ),
            "usage": optional(ref("Usage")),
        },
        leaves_out=("usage",),
    ),
}

PART = Part(
    "Completions",
    "Text in, its continuation out; the prompt goes to the model as it is, control tokens in it included.",
    {
        "/v1/completions": {
            "post": operation(
                "createCompletion",
                "Continue a text",
                ref("Completion"),
                body="CompletionRequest",
                example={"prompt": "The sea", "max_tokens": 16, "temperature": 0},
                stream=ref("CompletionChunk"),
                runs=True,
            )
        }
    },
    _SCHEMAS,
)
