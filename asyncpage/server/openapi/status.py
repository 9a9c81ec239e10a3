"""How the server is, and a look into its prefix cache: for probes, dashboards and routers outside.

INVARIANT: what needs no key says nothing of any request.
"""

from __future__ import annotations

from asyncpage.server.openapi.part import STREAM, Part, operation, path_parameter
from asyncpage.server.openapi.schema import (
    Json,
    answer,
    array,
    integer,
    number,
    optional,
    ref,
    string,
    word,
)

STATES = ("loading", "ready", "restarting", "draining", "dead")

_SCHEMAS: dict[str, Json] = {
    "Health": answer({"status": word("", "ok"), "state": word("", *STATES)}),
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
    "BlockSight": answer(
        {
            "block": integer(),
            "references": integer("Of requests that hold it."),
            "name": optional(string("The hash under which the prefix cache finds it.")),
            "parent": optional(string("The hash of the block before it.")),
            "chain": array(integer(), "The blocks before it, from the beginning of the prompt; 0 where one is gone."),
            "holders": array(
                answer(
                    {
                        "row": integer(),
                        "request": integer(),
                        "id": string("Of the request's answer."),
                        "group": integer("Of layers."),
                        "index": integer("Of the block among the row's."),
                    }
                )
            ),
            "token_count": integer(),
            "tokens": optional(
                array(answer({"id": integer(), "text": string()}), "Null where --chart-tokens keeps them from view.")
            ),
        }
    ),
    "ChartEvent": answer(
        {
            "kind": word("The first event is whole; each later one tells what has changed since.", "whole", "change"),
            "about": {"type": "object", "description": "Versions and sizes, which stay the same."},
            "blocks": {"type": "object", "description": "Columns, as base64 of little-endian numbers."},
            "rows": array(array(integer()), "Row and request of every row that is lived in."),
            "at": number("Seconds of the server's clock."),
            "state": word("", *STATES),
            "boxes": {"type": "object", "description": "Mailboxes, by the actor that reads each."},
            "stats": {"type": "object", "description": "Numbers, by actor."},
            "steps": array(array(number()), "Number, time, rows, tokens and milliseconds of each step."),
        },
        leaves_out=("about", "blocks", "rows", "steps"),
    ),
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
        "/debug/block/{block}": {
            "get": operation(
                "lookAtBlock",
                "What a block of the KV pool holds, and who holds it",
                ref("BlockSight"),
                parameters=[path_parameter("block", "Its number, from 1.")],
                errors=("404", "503"),
            )
        },
        "/events/chart": {
            "get": operation(
                "followChart",
                "A picture of the running engine, then what changes in it, as server-sent events",
                ref("ChartEvent"),
                media=STREAM,
                errors=("429", "503"),
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
