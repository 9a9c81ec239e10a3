"""What a request says that its answer must look like, in the words that the API and Python programs share.

The server's body readers and the engine call it; the compiler reads what it makes.

INVARIANT: exactly one constraint, or an error that names the field; nothing that constrains is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.grammar.source import MOST_CHARACTERS, GrammarKind, GrammarSource

KINDS: Mapping[str, GrammarKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}

_REFUSED = {
    "structural_tag": "structural tags",
    "whitespace_pattern": "a white space pattern of one's own (white space between JSON tokens is bounded here)",
    "disable_any_whitespace": "leaving out white space (white space between JSON tokens is bounded here)",
    "disable_additional_properties": "changing a schema's additionalProperties; say it in the schema",
}


def read_request(asked: Mapping[str, Any], path: str = "structured") -> tuple[GrammarSource, str]:
    """The source of the one constraint in `asked`, and the dotted path of the field that holds it.

    `json`: a schema, as a mapping, a bool or JSON text. `regex`: a pattern. `choice`: a list of texts. `grammar`: GBNF.
    `json_object`: True. None is absent. Errors: `RequestError` 400 naming the field.
    """
    for name, what in _REFUSED.items():
        if asked.get(name) not in (None, False):
            text = f"{path}.{name}: this version of asyncpage does not support {what}"
            raise RequestError(text, param=f"{path}.{name}", code="unsupported")
    given = [name for name in KINDS if asked.get(name) is not None]
    if len(given) != 1:
        found = f"got {' and '.join(given)}" if given else "got none"
        raise RequestError(f"{path} needs exactly one of {', '.join(KINDS)}; {found}", param=path)
    name = given[0]
    return source_of(KINDS[name], asked[name], f"{path}.{name}"), f"{path}.{name}"


def source_of(kind: GrammarKind, value: Any, param: str) -> GrammarSource:
    """The source of a constraint of one kind. Errors: `RequestError` 400 whose `param` is the field."""
    match kind:
        case "json_object":
            if value is not True:
                raise RequestError(f"{param} must be true, or left out", param=param)
            return GrammarSource(kind)
        case "json_schema":
            text = _schema_text(value, param)
        case "choice":
            is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            if not is_list or not value or not all(isinstance(one, str) for one in value):
                raise RequestError(f"{param} must be a list of at least one text", param=param)
            text = json.dumps(list(value), ensure_ascii=False)
        case _:
            if not isinstance(value, str) or not value:
                raise RequestError(f"{param} must be a text that is not empty", param=param)
            text = value
    if len(text) > MOST_CHARACTERS:
        raise RequestError(
            f"{param} may have at most {MOST_CHARACTERS} characters, got {len(text)}",
            param=param,
            code="grammar_too_large",
        )
    return GrammarSource(kind, text)


def _schema_text(value: Any, param: str) -> str:
    if isinstance(value, str):
        if not value.strip():
            raise RequestError(f"{param} must be a JSON schema, got an empty text", param=param)
        return value
    if not isinstance(value, Mapping | bool):
        found = "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        raise RequestError(f"{param} must be a JSON schema: an object, true or false; got {found}", param=param)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = f"{param} is no JSON schema: it holds what JSON does not have, or is nested too deep"
        raise RequestError(text, param=param) from None
