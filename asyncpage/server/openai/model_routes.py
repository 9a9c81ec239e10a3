"""Which models are served: the list and each by name, aliases and adapters included.

The application's router calls these.

INVARIANT: a name is listed exactly when a request may use it, and no path of this machine is shown.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from asyncpage.server.context import CONTEXT, Context


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models"""
    context = request.app[CONTEXT]
    names = (*context.engine.model_names, *context.engine.adapters.names)
    return web.json_response({"object": "list", "data": [model_card(context, name) for name in names]})


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{name}; names may hold slashes. Errors: 404 for a name that is not served."""
    context = request.app[CONTEXT]
    name = request.match_info["name"]
    context.engine.adapters.find(name)
    return web.json_response(model_card(context, name))


def model_card(context: Context, name: str) -> dict[str, Any]:
    """What is told of a name; an adapter's parent is the model that it changes."""
    names = context.engine.model_names
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "asyncpage",
        "root": names[0] if name in names else name,
        "parent": None if name == names[0] else names[0],
        # The context is the executor's to tell, and it tells when it has loaded.
        "max_model_len": None if context.engine.state == "loading" else context.engine.max_model_len,
    }
