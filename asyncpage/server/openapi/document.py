"""The whole document, put together from its parts.

`GET /openapi.json` sends it and the docs page shows it; a part of a new group of routes is added to `PARTS`.

INVARIANT: no two parts describe the same path or give a schema the same name.
"""

from __future__ import annotations

import asyncpage
from asyncpage.server.openapi import chat, completions, embeddings, messages, models, responses, status, tokens
from asyncpage.server.openapi.answers import RESPONSES, SCHEMAS
from asyncpage.server.openapi.part import Part
from asyncpage.server.openapi.schema import Json

PARTS: tuple[Part, ...] = (
    chat.PART,
    completions.PART,
    responses.PART,
    messages.PART,
    embeddings.PART,
    models.PART,
    tokens.PART,
    status.PART,
)

_TEXT = (
    "The OpenAI API, served by a model of your own. Where the server was started with a key, every route but those "
    "marked open needs it, as `Authorization: Bearer KEY` or `x-api-key: KEY`. Errors have one shape; every answer has "
    "an `x-request-id`. Fields that are not named here are ignored, and null is the same as leaving a field out."
)


def openapi(root_path: str = "") -> Json:
    """The document as JSON values. `root_path`: where a proxy shows the server."""
    paths: Json = {}
    schemas: Json = dict(SCHEMAS)
    for part in PARTS:
        for path, methods in part.paths.items():
            assert path not in paths, f"two parts describe {path}"
            paths[path] = {method: {**found, "tags": [part.tag]} for method, found in methods.items()}
        for name, schema in part.schemas.items():
            assert name not in schemas, f"two parts have a schema {name}"
            schemas[name] = schema
    return {
        "openapi": "3.1.0",
        "info": {"title": "asyncpage", "version": asyncpage.__version__, "description": _TEXT},
        **({"servers": [{"url": root_path}]} if root_path else {}),
        "tags": [{"name": part.tag, "description": part.text} for part in PARTS],
        "security": [{"bearer": []}, {"header": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": RESPONSES,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
