"""What a request says that its answer must look like: `response_format`, `structured_outputs` and older names for it.

The body readers call `read_structured`, the generate route `compile_call`.

INVARIANT: a field that constrains the answer leads to one grammar or to an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.grammar.request import KINDS, read_request, source_of
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import Constraint
from asyncpage.server.call import Call
from asyncpage.server.engine_port import Engine
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.schema_place import place_in_request
from asyncpage.server.json_body import check_values, parse_object

Asked = tuple[GrammarSource, str]

MAX_NAME = 64

_BACKEND = "guided_decoding_backend"


def read_structured(fields: Fields) -> Asked | None:
    """The source of the answer's grammar and the dotted path of the field that holds it; None for free text.

    Errors: `RequestError` 400 naming the field, also when two fields ask for something.
    """
    found = [
        asked
        for asked in (_response_format(fields), _structured_outputs(fields), *_older(fields), *_llama_cpp(fields))
        if asked is not None
    ]
    if len(found) > 1:
        names = " and ".join(param for _, param in found)
        raise invalid(f"an answer can follow one constraint, got {names}", param=found[1][1])
    return found[0] if found else None


async def compile_call(engine: Engine, call: Call) -> Constraint | None:
    """The constraint of a call. Errors: `RequestError`, whose `param` is the place inside the field that asked."""
    if call.grammar is None:
        return None
    call.sampling.check_constrained()
    try:
        return await engine.compile_grammar(call.grammar)
    except RequestError as error:
        failure = error.failure
        if failure.status != 400:
            raise
        param = _place(call, call.grammar, failure.param or "")
        raise invalid(f"{param}: {failure.message}", param=param, code=failure.code) from None


def _place(call: Call, grammar: GrammarSource, inside: str) -> str:
    """Where in the request that is which is `inside` the grammar."""
    if grammar.kind == "structure":
        return place_in_request(grammar.text, inside, call.grammar_schemas) or call.grammar_param
    return ".".join(filter(None, (call.grammar_param, inside)))


def _response_format(fields: Fields) -> Asked | None:
    """The OpenAI API's field: `text`, `json_object`, or `json_schema` with a schema, strict or not."""
    if fields.value("response_format") is None:
        return None
    wanted = fields.object("response_format")
    kind = wanted.required("type")
    match kind:
        case "text":
            return None
        case "json_object":
            # Other servers take a schema beside it; without effect it would be a broken promise.
            if wanted.value("schema") is not None:
                return _schema(wanted.value("schema"), "response_format.schema")
            return GrammarSource("json_object"), "response_format"
        case "json_schema":
            return _json_schema(wanted)
        case _:
            raise invalid(
                f"response_format.type must be text, json_object or json_schema; got {shown(kind)}",
                param="response_format.type",
            )


def _json_schema(wanted: Fields) -> Asked:
    wanted.required("json_schema")
    return read_json_schema(wanted.object("json_schema"))


def read_json_schema(named: Fields) -> Asked:
    """A schema with `name`, `description` and `strict` beside it, which change nothing here."""
    named.string("name", longest=MAX_NAME)
    named.value("description")
    named.boolean("strict")
    param = named.name_of("schema")
    schema = _parsed(named.required("schema"), param)
    if isinstance(schema, bool):  # JSON Schema's word for anything and for nothing, which this API does not have
        raise wrong_type(param, "a JSON schema that is an object", schema)
    return source_of("json_schema", schema, param), param


def _structured_outputs(fields: Fields) -> Asked | None:
    raw = fields.mapping("structured_outputs")
    if raw is None:
        return None
    return read_request({**raw, "json": _parsed(raw.get("json"), "structured_outputs.json")}, "structured_outputs")


def _older(fields: Fields) -> list[Asked]:
    """vLLM's fields of before `structured_outputs`."""
    found = []
    for name in fields.names():
        if not name.startswith("guided_") or name == _BACKEND:
            continue
        value = fields.value(name)
        kind = name.removeprefix("guided_")
        if value is None or (kind == "json_object" and value is False):
            continue
        if kind not in KINDS:
            raise invalid(
                f"{name}: this version of asyncpage does not support it; structured_outputs says what is",
                param=name,
                code="unsupported",
            )
        found.append(_schema(value, name) if kind == "json" else (source_of(KINDS[kind], value, name), name))
    return found


def _llama_cpp(fields: Fields) -> list[Asked]:
    """llama.cpp's fields."""
    found: list[Asked] = []
    schema: Any = fields.value("json_schema")
    if schema is not None:
        if not isinstance(schema, Mapping | bool | str):
            raise wrong_type("json_schema", "a JSON schema", schema)
        found.append(_schema(schema, "json_schema"))
    if fields.value("grammar") not in (None, ""):
        found.append((source_of("grammar", fields.value("grammar"), "grammar"), "grammar"))
    return found


def _schema(value: Any, param: str) -> Asked:
    return source_of("json_schema", _parsed(value, param), param), param


def _parsed(value: Any, param: str) -> Any:
    """A schema that comes as a text is read, as bounded as a body: it may become a part of a larger grammar."""
    match value.strip() if isinstance(value, str) else None:
        case None | "":
            return value
        case "true" | "false" as word:
            return word == "true"
        case text:
            try:
                schema = parse_object(text.encode("utf-8", "replace"), "the schema")
                check_values(schema)
            except RequestError as error:
                path = ".".join(filter(None, (param, error.failure.param)))
                raise invalid(f"{param}: {error.failure.message}", param=path) from None
            return schema.fields
