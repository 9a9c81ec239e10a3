"""Loading and unloading adapters while the server runs, for operators: off unless they name folders to load from.

The application's router calls these; the engine's shelf reads and checks what is loaded.

INVARIANT: what is outside of the folders that the operator has named is not opened, and no path of this machine shown.
"""

from __future__ import annotations

from aiohttp import web

from asyncpage.server.context import CONTEXT
from asyncpage.server.fields import Fields
from asyncpage.server.json_body import read_object
from asyncpage.server.openai.model_routes import model_card

MOST_NAME = 128
MOST_PATH = 4096


async def load_adapter(request: web.Request) -> web.Response:
    """POST /v1/load_lora_adapter: from now on `lora_name` is a model; one that has the name already is replaced.

    Errors: 400 for files that cannot be used, with the reason; 403 where loading is off.
    """
    context = request.app[CONTEXT]
    context.engine.adapters.check_open()
    context.check_ready()
    fields = Fields((await read_object(request, context.config.max_body_bytes)).fields)
    name = fields.required_string("lora_name", longest=MOST_NAME)
    path = fields.required_string("lora_path", longest=MOST_PATH)
    await context.engine.adapters.load_allowed(name, path)
    return web.json_response(model_card(context, name))


async def unload_adapter(request: web.Request) -> web.Response:
    """POST /v1/unload_lora_adapter: `lora_name` is no model any more; requests that run with it go on.

    Errors: 403 where loading is off, 404 for a name that is not loaded.
    """
    context = request.app[CONTEXT]
    context.engine.adapters.check_open()
    fields = Fields((await read_object(request, context.config.max_body_bytes)).fields)
    name = fields.required_string("lora_name", longest=MOST_NAME)
    context.engine.adapters.unload(name)
    return web.json_response({"id": name, "object": "model", "deleted": True})
