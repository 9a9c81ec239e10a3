"""The fields that chat and text completions share: sampling, what the answer shows, how it is delivered.

INVARIANT: bounds are read from the constants that the validation itself uses.
"""

from __future__ import annotations

from asyncpage.core.sampling import (
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
)
from asyncpage.server.generate.call_fields import MAX_SALT, MAX_STOP_TOKEN_IDS, MAX_TIMEOUT_S
from asyncpage.server.generate.unsupported import WITHOUT_EFFECT as NAMES_WITHOUT_EFFECT
from asyncpage.server.openapi.schema import (
    Json,
    any_of,
    anything,
    array,
    boolean,
    integer,
    mapping,
    number,
    refused,
    request,
    string,
)

INT_MAX = 2**31 - 1

_TOKEN_ID = integer(low=0, high=INT_MAX)
_BIAS = f"Added to the logits of tokens, by token id. At most {MAX_LOGIT_BIAS} tokens."

SAMPLING: dict[str, Json] = {
    "temperature": number("0 takes the most likely token each time.", 0, 2, examples=[0.7]),
    "top_p": number("Only the most likely tokens that together have this probability. Above 0.", 0, 1, examples=[0.9]),
    "top_k": integer("Only this many of the most likely tokens; 0 and -1 for all.", -1, INT_MAX, examples=[40]),
    "min_p": number("Only tokens with this share of the likeliest one's probability.", 0, 1, examples=[0.05]),
    "n": integer("Choices for each prompt.", 1, MAX_CHOICES, examples=[1]),
    "seed": integer("Equal seeds draw equal tokens.", -(2**63), 2**63 - 1, examples=[7]),
    "stop": any_of(
        "The answer ends before any of these.",
        string(minLength=1, maxLength=MAX_STOP_BYTES),
        array(string(minLength=1, maxLength=MAX_STOP_BYTES), high=MAX_STOP_STRINGS),
        examples=[["\n"]],
    ),
    "stop_token_ids": array(_TOKEN_ID, "Token ids that end the answer.", high=MAX_STOP_TOKEN_IDS, examples=[[2]]),
    "include_stop_str_in_output": boolean("Show the stop string that ended the answer.", examples=[False]),
    "bad_words": array(
        string(minLength=1, maxLength=MAX_STOP_BYTES), "Never written.", high=MAX_BAD_WORDS, examples=[["darn"]]
    ),
    "allowed_token_ids": array(_TOKEN_ID, "No other token may be drawn.", low=1, examples=[[1, 2, 3]]),
    "logit_bias": mapping(
        number(low=-100, high=100), _BIAS, propertyNames={"pattern": "^[0-9]{1,10}$"}, examples=[{"2": -5}]
    ),
    "presence_penalty": number("On tokens that the answer has.", -2, 2, examples=[0.1]),
    "frequency_penalty": number("On tokens, as often as the answer has them.", -2, 2, examples=[0.1]),
    "repetition_penalty": number("Above 1: against tokens of prompt and answer. Above 0.", 0, 100, examples=[1.1]),
    "min_tokens": integer("Tokens before the answer may end.", 0, INT_MAX, examples=[1]),
    "ignore_eos": boolean("Go on past the model's end token.", examples=[False]),
    "skip_special_tokens": boolean("Leave control tokens out of the text (true unless given).", examples=[True]),
}

DELIVERY: dict[str, Json] = {
    "model": string("One of the served names; the first when left out."),
    "stream": boolean("Send the answer as server-sent events."),
    "stream_options": request(
        {
            "include_usage": boolean("Send the usage in a last chunk without choices.", examples=[True]),
            "continuous_usage_stats": boolean("Send the usage so far in every chunk.", examples=[False]),
        },
        text="Needs stream to be true.",
    ),
    "return_token_ids": boolean("Show token ids beside the text.", examples=[True]),
    "prompt_logprobs": integer(
        "Log-probabilities of the prompt's tokens with so many alternatives. Needs stream to be false.",
        0,
        MAX_TOP_LOGPROBS,
        examples=[1],
    ),
    "add_special_tokens": boolean("Put around the prompt what the model wants around a text."),
}

ENGINE: dict[str, Json] = {
    "priority": integer("Smaller runs earlier.", -INT_MAX, INT_MAX, examples=[0]),
    "timeout": number("Seconds until the request is given up. Above 0.", 0, MAX_TIMEOUT_S, examples=[60.0]),
    "cache_salt": string("Prompts share cached beginnings with those of the same salt only.", maxLength=MAX_SALT),
    "use_cache": boolean("False: neither read nor feed the prefix cache.", examples=[True]),
    "cache_prompt": boolean("The same, as other servers call it.", examples=[True]),
    "truncate_prompt_tokens": integer(
        "Keep only so many tokens from the prompt's end; -1 for as many as the model takes.", -1, examples=[8]
    ),
}

# Accepted, because clients send them to every server.
WITHOUT_EFFECT: dict[str, Json] = {name: anything("Accepted without effect.") for name in NAMES_WITHOUT_EFFECT}

REFUSED: dict[str, Json] = {
    "adapter": refused("adapters"),
    "adapters": refused("adapters"),
    "lora": refused("adapters"),
    "lora_request": refused("adapters"),
    "use_beam_search": refused("beam search"),
    "logits_processors": refused("code in requests"),
    "audio": refused("audio"),
    "web_search_options": refused("web search"),
    "chat_template": refused("a template in the request"),
    "modalities": {
        "type": ["array", "null"],
        "items": {"type": "string", "enum": ["text"]},
        "description": 'Refused unless ["text"].',
        "examples": [["text"]],
    },
}
