"""A part of the document: the routes of one file, what they take and what they answer.

Each part names its paths and its schemas; `document` puts them together.

INVARIANT: an operation names every status that its route can answer with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asyncpage.server.openapi.schema import Json, ref

STREAM = "text/event-stream"

# Every route can answer with these; the ones that take a body, or run it, with more.
_COMMON = ("400", "401", "403", "500")
_WITH_BODY = ("404", "408", "413", "415", "503")
_WITH_RUN = ("429", "504")


@dataclass(frozen=True, slots=True)
class Part:
    """`tag` and `text` head its routes on the page. `paths`: path, method, operation. `schemas`: by name."""

    tag: str
    text: str
    paths: Mapping[str, Mapping[str, Json]]
    schemas: Mapping[str, Json] = field(default_factory=dict)


def operation(
    name: str,
    summary: str,
    answer: Json | None = None,
    *,
    text: str = "",
    body: str | None = None,
    example: Json | None = None,
    stream: Json | None = None,
    media: str = "application/json",
    parameters: Sequence[Json] = (),
    errors: Sequence[str] = (),
    runs: bool = False,
    is_public: bool = False,
) -> Json:
    """One method of a path.

    `name`: its operationId. `answer`: the schema of a 200, which comes as `media`. `body`: the name of the schema that
    it takes, with an `example`. `stream`: the schema of each event, where it can stream. `errors`: further statuses.
    `runs`: the model is run. `is_public`: it needs no key where the server has one.
    """
    content: Json = {media: {"schema": answer if answer is not None else {"type": "string"}}}
    if stream is not None:
        content[STREAM] = {"schema": {"type": "string", "description": "Server-sent events"}, "x-event": stream}
    statuses = [*_COMMON, *(_WITH_BODY if body else ()), *(_WITH_RUN if runs else ()), *errors]
    found: Json = {"operationId": name, "summary": summary}
    if text:
        found["description"] = text
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        media_type: Json = {"schema": ref(body)}
        if example is not None:
            media_type["example"] = example
        found["requestBody"] = {"required": True, "content": {"application/json": media_type}}
    found["responses"] = {"200": {"description": "Done.", "content": content}}
    found["responses"] |= {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(set(statuses))}
    if is_public:
        found["security"] = []
    return found


def path_parameter(name: str, text: str) -> Json:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
