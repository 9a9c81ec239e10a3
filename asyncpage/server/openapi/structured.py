"""Structured output: what an answer must look like, down to its last byte.

INVARIANT: a constraint is enforced or refused by name, never ignored.
"""

from __future__ import annotations

from asyncpage.server.generate.structured_fields import MAX_NAME
from asyncpage.server.openapi.schema import Json, any_of, array, boolean, ref, request, string, word

_OBJECT_SCHEMA: Json = {
    "type": "object",
    "examples": [{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}],
}
_ABOUT_SCHEMA = (
    "A JSON Schema that the answer follows, also as a text; a keyword that is not supported is refused by name."
)
_SCHEMA_TEXT = string(examples=['{"type": "integer"}'])
SCHEMA = any_of(_ABOUT_SCHEMA, _OBJECT_SCHEMA, boolean(), _SCHEMA_TEXT)
_REGEX = string("A regular expression that the whole answer matches.", minLength=1, examples=["[a-z]+"])
_CHOICE = array(string(), "The answer is one of these.", low=1, examples=[["yes", "no"]])
_GRAMMAR = string("A grammar in GBNF, whose rule root the answer follows.", examples=['root ::= "yes" | "no"'])
_OBJECT: Json = {"type": "boolean", "enum": [True], "description": "The answer is a JSON object."}

NAMED: dict[str, Json] = {
    "schema": any_of(_ABOUT_SCHEMA, _OBJECT_SCHEMA, _SCHEMA_TEXT),
    "name": string("Changes nothing.", maxLength=MAX_NAME, examples=["answer"]),
    "description": string("Changes nothing."),
    "strict": boolean("The schema is kept either way."),
}

SCHEMAS: dict[str, Json] = {
    "ResponseFormat": any_of(
        "What the answer is: any text, a JSON object, or JSON that follows a schema.",
        request({"type": word("", "text")}, "type"),
        request({"type": word("", "json_object"), "schema": SCHEMA}, "type"),
        request(
            {
                "type": word("", "json_schema"),
                "json_schema": request(NAMED, "schema"),
            },
            "type",
            "json_schema",
        ),
    ),
    "StructuredOutputs": any_of(
        "One constraint on the answer; a request has one, whatever the field that says it.",
        request({"json": SCHEMA}, "json"),
        request({"regex": _REGEX}, "regex"),
        request({"choice": _CHOICE}, "choice"),
        request({"grammar": _GRAMMAR}, "grammar"),
        request({"json_object": _OBJECT}, "json_object"),
    ),
}

# On every route that generates.
EXTENSIONS: dict[str, Json] = {
    "structured_outputs": ref("StructuredOutputs"),
    "guided_json": SCHEMA,
    "guided_regex": _REGEX,
    "guided_choice": _CHOICE,
    "guided_grammar": _GRAMMAR,
    "guided_json_object": boolean("The answer is a JSON object.", examples=[True]),
    "grammar": {**_GRAMMAR, "description": "The same as structured_outputs.grammar."},
    "json_schema": {**SCHEMA, "description": "The same as structured_outputs.json."},
}

FIELDS: dict[str, Json] = {"response_format": ref("ResponseFormat"), **EXTENSIONS}
