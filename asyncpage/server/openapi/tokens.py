"""`/tokenize`, `/detokenize` and `/tokenizer_info`: texts and token ids, without running anything.

INVARIANT: a prompt is described as the routes that generate describe it.
"""

from __future__ import annotations

from asyncpage.server.openai.tokenize_body import MAX_DETOKENIZE
from asyncpage.server.openapi import tools
from asyncpage.server.openapi.chat import CONVERSATION
from asyncpage.server.openapi.part import Part, operation
from asyncpage.server.openapi.sampling import DELIVERY, INT_MAX
from asyncpage.server.openapi.schema import Json, answer, array, boolean, integer, optional, ref, request, string

_IDS = array(integer())

_SCHEMAS: dict[str, Json] = {
    "TokenizeRequest": request(
        {
            "model": DELIVERY["model"],
            "prompt": string("A text; or send messages.", examples=["The sea"]),
            **CONVERSATION,
            **tools.OFFERED,
            "return_token_strs": boolean("Show each token's text.", examples=[True]),
        }
    ),
    "Tokenized": answer(
        {
            "count": integer(),
            "max_model_len": integer("Tokens that prompt and answer may have together."),
            "tokens": _IDS,
            "token_strs": array(string(), "Where return_token_strs asked for them."),
        },
        leaves_out=("token_strs",),
    ),
    "DetokenizeRequest": request(
        {
            "model": DELIVERY["model"],
            "tokens": array(integer(low=0, high=INT_MAX), high=MAX_DETOKENIZE, examples=[[1, 2, 3]]),
        },
        "tokens",
    ),
    "Detokenized": answer({"prompt": string("Control tokens included.")}),
    "TokenizerInfo": answer(
        {
            **{role: optional(string()) for role in ("bos_token", "eos_token", "pad_token", "unk_token")},
            "add_bos_token": boolean(),
            "chat_template": optional(string("Jinja.")),
        },
        leaves_out=("pad_token", "unk_token", "add_bos_token"),
        text="In the words of tokenizer_config.json.",
    ),
}

PART = Part(
    "Tokens",
    "Texts and token ids, each from the other, without running anything.",
    {
        "/tokenize": {
            "post": operation(
                "tokenize",
                "The token ids of a text or a conversation",
                ref("Tokenized"),
                body="TokenizeRequest",
                example={"prompt": "The sea"},
                errors=("429",),
            )
        },
        "/detokenize": {
            "post": operation(
                "detokenize",
                "The text of token ids",
                ref("Detokenized"),
                body="DetokenizeRequest",
                example={"tokens": [1, 2, 3]},
            )
        },
        "/tokenizer_info": {
            "get": operation("getTokenizerInfo", "What the tokenizer is", ref("TokenizerInfo"), errors=("503",))
        },
    },
    _SCHEMAS,
)
