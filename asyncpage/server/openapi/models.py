"""`/v1/models`: which names requests may use; and the routes that load and unload adapters, which are models too.

INVARIANT: no path of the serving machine is shown.
"""

from __future__ import annotations

from asyncpage.server.openapi.part import Part, operation, path_parameter
from asyncpage.server.openapi.schema import Json, answer, array, boolean, integer, optional, ref, request, string, word

_SCHEMAS: dict[str, Json] = {
    "Model": answer(
        {
            "id": string("What requests put into their model field."),
            "object": word("", "model"),
            "created": integer("When the server started, in seconds since the epoch."),
            "owned_by": string(),
            "root": string("The first name of the same model."),
            "parent": optional(string("The same, of a further name; of an adapter, the model that it changes.")),
            "max_model_len": optional(integer("Tokens that prompt and answer may have together.")),
        }
    ),
    "AdapterToLoad": request(
        {
            "lora_name": string("What requests will call it.", examples=["sql"]),
            "lora_path": string("Its folder, inside of one that --lora-dir names.", examples=["adapters/sql"]),
        },
        "lora_name",
        "lora_path",
    ),
    "AdapterToUnload": request({"lora_name": string(examples=["sql"])}, "lora_name"),
    "ModelDeleted": answer({"id": string(), "object": word("", "model"), "deleted": boolean()}),
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
        "/v1/load_lora_adapter": {
            "post": operation(
                "loadAdapter",
                "Load a LoRA adapter under a name, or another under the same",
                ref("Model"),
                text="Off unless the server was started with --lora-dir. Requests that run keep what they began with.",
                body="AdapterToLoad",
                example={"lora_name": "sql", "lora_path": "adapters/sql"},
                errors=("429",),
            )
        },
        "/v1/unload_lora_adapter": {
            "post": operation(
                "unloadAdapter",
                "Take no more requests for an adapter",
                ref("ModelDeleted"),
                text="Off unless the server was started with --lora-dir. Requests that run with it go on.",
                body="AdapterToUnload",
                example={"lora_name": "sql"},
            )
        },
    },
    _SCHEMAS,
)
