"""`POST /v1/embeddings`: texts in, vectors out.

INVARIANT: an answer has one vector for each input, in their order.
"""

from __future__ import annotations

from asyncpage.server.openai.embedding_body import ENCODINGS, MAX_INPUTS, MAX_USER
from asyncpage.server.openapi.answers import HEAD
from asyncpage.server.openapi.part import Part, operation
from asyncpage.server.openapi.sampling import DELIVERY, ENGINE, INT_MAX
from asyncpage.server.openapi.schema import (
    Json,
    answer,
    any_of,
    array,
    boolean,
    integer,
    number,
    ref,
    request,
    string,
    word,
)

_IDS = array(integer(low=0, high=INT_MAX), low=1)

_SCHEMAS: dict[str, Json] = {
    "EmbeddingRequest": request(
        {
            "model": DELIVERY["model"],
            "input": any_of(
                "One input or several, as texts or as token ids.",
                string(minLength=1),
                array(string(minLength=1), low=1, high=MAX_INPUTS),
                _IDS,
                array(_IDS, low=1, high=MAX_INPUTS),
                examples=["The sea"],
            ),
            "encoding_format": word("base64 is of float32, little-endian; float unless given.", *ENCODINGS),
            "dimensions": integer("The model's own number; any other is refused.", 1),
            "normalize": boolean("Vectors of length 1: as the model's files say unless given.", examples=[True]),
            "add_special_tokens": boolean(
                "Put around the input what the model wants around a text, as is always done: false is refused.",
                examples=[True],
            ),
            "user": string("Accepted without effect.", maxLength=MAX_USER),
            **ENGINE,
            "truncate_prompt_tokens": integer(
                "Keep so many tokens; -1 for all that the model takes.", -1, examples=[8]
            ),
        },
        "input",
    ),
    "Embeddings": answer(
        {
            **HEAD,
            "object": word("", "list"),
            "data": array(
                answer(
                    {
                        "object": word("", "embedding"),
                        "index": integer("Of the input."),
                        "embedding": any_of("As encoding_format asked.", array(number()), string()),
                    }
                )
            ),
            "usage": answer({"prompt_tokens": integer(), "total_tokens": integer()}),
        }
    ),
}

PART = Part(
    "Embeddings",
    "Texts in, vectors out, where the model makes any.",
    {
        "/v1/embeddings": {
            "post": operation(
                "createEmbedding",
                "The vectors of texts",
                ref("Embeddings"),
                body="EmbeddingRequest",
                example={"input": ["The sea", "A ship"]},
                runs=True,
            )
        }
    },
    _SCHEMAS,
)
