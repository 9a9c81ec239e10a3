"""Structured output: what an answer must look like, down to its last byte.

INVARIANT: a constraint is enforced or refused by name, never ignored.
"""

from __future__ import annotations

from asyncpage.server.openapi.schema import Json, any_of, array, boolean, ref, refused, request, string, word

_JSON_SCHEMA: Json = {
    "type": "object",
    "description": "A JSON Schema; a keyword that is not supported is refused by name.",
    "examples": [{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}],
}
_REGEX = string("A regular expression that the whole answer matches.", examples=["[a-z]+"])
_CHOICE = array(string(), "The answer is one of these.", low=1, examples=[["yes", "no"]])
_GRAMMAR = string("A grammar in GBNF.", examples=['root ::= "yes" | "no"'])
_JSON = any_of("A JSON Schema that the answer follows, as an object or as a text.", _JSON_SCHEMA, string())

SCHEMAS: dict[str, Json] = {
    "ResponseFormat": any_of(
        "What the answer is: any text, a JSON object, or JSON that follows a schema.",
        request({"type": word("", "text")}, "type"),
        request({"type": word("", "json_object")}, "type"),
        request(
            {
                "type": word("", "json_schema"),
                "json_schema": request(
                    {
                        "name": string(examples=["answer"]),
                        "description": string(),
                        "schema": _JSON_SCHEMA,
                        "strict": boolean("The schema is kept either way."),
                    }
                ),
            },
            "type",
            "json_schema",
        ),
    ),
    "StructuredOutputs": request(
        {
            "json": _JSON,
            "regex": _REGEX,
            "choice": _CHOICE,
            "grammar": _GRAMMAR,
            "json_object": boolean("The answer is a JSON object."),
        },
        text="Exactly one of these.",
    ),
}

FIELDS: dict[str, Json] = {
    "response_format": ref("ResponseFormat"),
    "structured_outputs": ref("StructuredOutputs"),
    "guided_json": _JSON,
    "guided_regex": _REGEX,
    "guided_choice": _CHOICE,
    "guided_grammar": _GRAMMAR,
    "grammar": refused("under this name; send structured_outputs.grammar"),
    "json_schema": refused("under this name; send response_format"),
}
