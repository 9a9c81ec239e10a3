"""Which models are served: the list and each by name, aliases included.

The application's router calls these.

INVARIANT: a name is listed exactly when a request may use it, and no path of this machine is shown.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from asyncpage.errors import RequestError
from asyncpage.server.context import CONTEXT, Context
from asyncpage.server.fields import shown


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models"""
    context = request.app[CONTEXT]
    return web.json_response({"object": "list", "data": [_card(context, name) for name in context.engine.model_names]})


async def get_model(request: web.Request) -> web.Response:
    """GET /v1/models/{name}; names may hold slashes. Errors: 404 for a name that is not served."""
    context = request.app[CONTEXT]
    name = request.match_info["name"]
    if name not in context.engine.model_names:
        raise RequestError(
            f"the model {shown(name)} does not exist here; served: {', '.join(context.engine.model_names)}",
            status=404,
            code="model_not_found",
            param="model",
        )
    return web.json_response(_card(context, name))


def _card(context: Context, name: str) -> dict[str, Any]:
    names = context.engine.model_names
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "asyncpage",
        "root": names[0],
        "parent": None if name == names[0] else names[0],
        # The context is the executor's to tell, and it tells when it has loaded.
        "max_model_len": None if context.engine.state == "loading" else context.engine.max_model_len,
    }
