"""What the answers of several routes have in common: usage, log-probabilities, errors.

INVARIANT: an error has the same four fields whatever route it comes from.
"""

from __future__ import annotations

from asyncpage.server.openapi.schema import Json, answer, array, integer, mapping, number, optional, ref, string

HEAD: dict[str, Json] = {
    "id": string("Of this answer; 'GET /debug/why/{id}' takes it."),
    "created": integer("Seconds since the epoch."),
    "model": string("The name that the request used."),
    "system_fingerprint": optional(string("Of weights, arithmetic and code: what a seed's tokens depend on.")),
}

STOP_REASON: Json = {
    "type": ["string", "integer", "null"],
    "description": "The stop string or token id that ended the answer.",
}
TOKEN_IDS = array(integer(), "Where return_token_ids asked for them.")
_LOGPROB = number("Of drawing this token here.")

_CHAT_TOKEN: dict[str, Json] = {
    "token": string("Its text."),
    "logprob": _LOGPROB,
    "bytes": array(integer(low=0, high=255), "What it stands for; a character may be spread over several tokens."),
}

SCHEMAS: dict[str, Json] = {
    "Usage": answer(
        {
            "prompt_tokens": integer(),
            "completion_tokens": integer(),
            "total_tokens": integer(),
            "prompt_tokens_details": answer({"cached_tokens": integer("Found in the prefix cache, not computed.")}),
            "completion_tokens_details": answer(
                {
                    "accepted_prediction_tokens": integer("Of the completion's tokens, those guessed ahead."),
                    "rejected_prediction_tokens": integer("Guesses that were wrong; they count nowhere else."),
                }
            ),
        },
        text="Tokens of all prompts and choices; a prompt counts once.",
    ),
    "ChatLogprobs": answer(
        {
            "content": array(
                answer({**_CHAT_TOKEN, "top_logprobs": array(answer(_CHAT_TOKEN))}), "One for each token."
            ),
            "refusal": {"type": "null"},
        }
    ),
    "CompletionLogprobs": answer(
        {
            "tokens": array(string()),
            "token_logprobs": array(optional(_LOGPROB), "Null for the first token of an echoed prompt."),
            "top_logprobs": array(optional(mapping(_LOGPROB)), "By text, the chosen token among them."),
            "text_offset": array(integer(), "Where in the choice's text each token begins."),
        }
    ),
    "PromptLogprobs": array(
        optional(mapping(answer({"logprob": _LOGPROB, "rank": integer(), "decoded_token": string()}), "By token id.")),
        "One for each token of the prompt; null for the first.",
    ),
    "Error": answer(
        {
            "error": answer(
                {
                    "message": string("What happened, what was found, what to do."),
                    "type": string(examples=["invalid_request_error"]),
                    "param": optional(string("The field at fault, as a dotted path.", examples=["messages.0.content"])),
                    "code": optional(string("For programs.", examples=["context_length_exceeded"])),
                }
            )
        }
    ),
}

_STATUSES = {
    "400": "The request cannot be done as it is; param names the field.",
    "401": "A key is needed, or the one sent is not one of this server's.",
    "403": "This host name or web origin may not use the server.",
    "404": "There is no such model, path or request.",
    "408": "The body did not arrive in time.",
    "413": "The body is larger than this server takes.",
    "415": "Compressed bodies are not taken.",
    "429": "The queue is full; Retry-After says when to come back.",
    "500": "A fault of the server.",
    "503": "The server is loading, restarting or shutting down; Retry-After says when to come back.",
    "504": "The deadline has passed.",
}

RETRY_AFTER: Json = {"description": "Seconds until asking again makes sense.", "schema": {"type": "integer"}}

RESPONSES: dict[str, Json] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": ref("Error")}},
        **({"headers": {"Retry-After": RETRY_AFTER}} if status in ("429", "503") else {}),
    }
    for status, text in _STATUSES.items()
}
