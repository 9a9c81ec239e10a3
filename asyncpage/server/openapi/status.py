"""How the server is, and a look into its prefix cache: for probes, dashboards and routers outside.

INVARIANT: what needs no key says nothing of any request.
"""

from __future__ import annotations

from asyncpage.server.openapi.part import STREAM, Part, operation, path_parameter
from asyncpage.server.openapi.schema import Json, answer, integer, ref, string, word

_SCHEMAS: dict[str, Json] = {
    "Health": answer(
        {"status": word("", "ok"), "state": word("", "loading", "ready", "restarting", "draining", "dead")}
    ),
    "Ready": answer({"status": word("", "ready")}),
    "Load": answer({"server_load": integer("Calls that are open.")}),
    "Version": answer({"version": string()}),
    "CacheReset": answer({"blocks_dropped": integer()}),
    "Explanation": {"type": "object", "description": "Blocks found, and for each one missed the reason."},
    "CacheEvent": {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {
                "type": "string",
                "enum": ["BlockStored", "BlockRemoved", "AllBlocksCleared", "EventsLost"],
            }
        },
        "description": "In the words of vLLM's KV events, which routers read.",
    },
}

_PING = operation("ping", "Alive, for hosts that ask here", ref("Health"))

PART = Part(
    "Server",
    "How the server is. Every route here answers HEAD too where it answers GET, but for the event streams.",
    {
        "/health": {"get": operation("getHealth", "200 while the server turns", ref("Health"), is_public=True)},
        "/ready": {"get": operation("getReady", "200 when calls are taken", ref("Ready"), errors=("503",))},
        "/ping": {"get": _PING, "post": {**_PING, "operationId": "postPing"}},
        "/load": {"get": operation("getLoad", "How many calls are open", ref("Load"))},
        "/version": {"get": operation("getVersion", "Which asyncpage this is", ref("Version"))},
        "/metrics": {"get": operation("getMetrics", "Numbers for Prometheus", media="text/plain")},
        "/openapi.json": {"get": operation("getOpenapi", "This description", {"type": "object"})},
        "/docs": {"get": operation("getDocs", "This description as a page", media="text/html", is_public=True)},
        "/debug/why/{id}": {
            "get": operation(
                "explainRequest",
                "What a request found in the prefix cache, and why no more",
                ref("Explanation"),
                parameters=[path_parameter("id", "The id of an answer.")],
                errors=("404", "429", "503"),
            )
        },
        "/events/kv": {
            "get": operation(
                "followCache",
                "A server-sent event for every block stored or removed",
                ref("CacheEvent"),
                media=STREAM,
                errors=("429", "503"),
            )
        },
        "/admin/reset_prefix_cache": {
            "post": operation(
                "resetPrefixCache",
                "Let nothing computed so far be found again",
                ref("CacheReset"),
                errors=("429", "503"),
            )
        },
    },
    _SCHEMAS,
)
