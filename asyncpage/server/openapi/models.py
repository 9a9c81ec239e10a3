"""`/v1/models`: which names requests may use.

INVARIANT: no path of the serving machine is shown.
"""

from __future__ import annotations

from asyncpage.server.openapi.part import Part, operation, path_parameter
from asyncpage.server.openapi.schema import Json, answer, array, integer, optional, ref, string, word

_SCHEMAS: dict[str, Json] = {
    "Model": answer(
        {
            "id": string("What requests put into their model field."),
            "object": word("", "model"),
            "created": integer("When the server started, in seconds since the epoch."),
            "owned_by": string(),
            "root": string("The first name of the same model."),
            "parent": optional(string("The same, of a further name.")),
            "max_model_len": optional(integer("Tokens that prompt and answer may have together.")),
        }
    ),
    "ModelList": answer({"object": word("", "list"), "data": array(ref("Model"))}),
}

PART = Part(
    "Models",
    "The names that requests may use.",
    {
        "/v1/models": {"get": operation("listModels", "Every served name", ref("ModelList"))},
        "/v1/models/{name}": {
            "get": operation(
                "getModel",
                "One served name",
                ref("Model"),
                parameters=[path_parameter("name", "It may hold slashes.")],
                errors=("404",),
            )
        },
    },
    _SCHEMAS,
)
