"""The application: every route, who may use it without a key, and what wraps them all.

`HttpServer` runs it; tests and embedders may run it themselves.

INVARIANT: a route is guarded unless it was added as public here.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from asyncpage.server.anthropic.routes import count_tokens, messages
from asyncpage.server.api_key import ApiKeys
from asyncpage.server.cache_routes import kv_events, reset_prefix_cache, why
from asyncpage.server.chart.index_comparison import read_index_comparison
from asyncpage.server.chart.routes import chart_events, look_at_block
from asyncpage.server.config import ServerConfig
from asyncpage.server.context import CONTEXT, Context
from asyncpage.server.engine_port import Engine
from asyncpage.server.envelope import Gate, envelope
from asyncpage.server.metrics import Metrics
from asyncpage.server.openai.adapter_routes import load_adapter, unload_adapter
from asyncpage.server.openai.embedding_route import embeddings
from asyncpage.server.openai.generate_routes import chat_completions, completions
from asyncpage.server.openai.model_routes import get_model, list_models
from asyncpage.server.openai.token_routes import detokenize, tokenize, tokenizer_info
from asyncpage.server.openapi.routes import Handler, document_handler, page_handlers
from asyncpage.server.pace import Pace
from asyncpage.server.responses.routes import responses
from asyncpage.server.site_check import SiteCheck
from asyncpage.server.static_page import PAGE_FILES, page_handler
from asyncpage.server.status_routes import health, load, metrics, ready, version


def create_app(engine: Engine, config: ServerConfig) -> web.Application:
    """The whole HTTP API over one engine. The runner must have `handler_cancellation=True`.

    Errors: `UsageError` for settings that cannot work.
    """
    config.check()
    app = web.Application(middlewares=[envelope], client_max_size=config.max_body_bytes)
    comparison = None if config.index_comparison is None else read_index_comparison(config.index_comparison)
    app[CONTEXT] = Context(engine, config, Metrics(), Pace(engine.now), int(engine.wall()), comparison)
    document = document_handler(config.root_path)
    pages = [*((path, page_handler(file, kind)) for path, file, kind in PAGE_FILES), *page_handlers()]
    public: list[web.AbstractRoute] = []
    for prefix in dict.fromkeys(("", config.root_path)):
        public += _add_routes(app.router, prefix, document, pages)
    gate = Gate(SiteCheck(config), ApiKeys(config.api_key), frozenset(route.resource for route in public))
    app.middlewares.append(gate.middleware())
    app.on_response_prepare.append(gate.add_headers)
    return app


def _add_routes(
    router: web.UrlDispatcher, prefix: str, document: Handler, pages: Sequence[tuple[str, Handler]]
) -> list[web.AbstractRoute]:
    """Every route, with `prefix` before its path. Returns those that need no key.

    `document`: sends the description. `pages`: paths and what sends them; both are the same under every prefix.
    """
    router.add_post(f"{prefix}/v1/chat/completions", chat_completions)
    router.add_post(f"{prefix}/v1/completions", completions)
    router.add_post(f"{prefix}/v1/responses", responses)
    router.add_post(f"{prefix}/v1/messages", messages)
    router.add_post(f"{prefix}/v1/messages/count_tokens", count_tokens)
    router.add_post(f"{prefix}/v1/embeddings", embeddings)
    router.add_get(f"{prefix}/v1/models", list_models)
    router.add_get(f"{prefix}/v1/models/{{name:.+}}", get_model)
    router.add_post(f"{prefix}/v1/load_lora_adapter", load_adapter)
    router.add_post(f"{prefix}/v1/unload_lora_adapter", unload_adapter)
    router.add_post(f"{prefix}/tokenize", tokenize)
    router.add_post(f"{prefix}/detokenize", detokenize)
    router.add_get(f"{prefix}/tokenizer_info", tokenizer_info)
    router.add_get(f"{prefix}/ping", health)
    router.add_post(f"{prefix}/ping", health)
    router.add_get(f"{prefix}/ready", ready)
    router.add_get(f"{prefix}/load", load)
    router.add_get(f"{prefix}/version", version)
    router.add_get(f"{prefix}/metrics", metrics)
    router.add_get(f"{prefix}/openapi.json", document)
    router.add_post(f"{prefix}/admin/reset_prefix_cache", reset_prefix_cache)
    router.add_get(f"{prefix}/debug/why/{{id}}", why)
    router.add_get(f"{prefix}/debug/block/{{block}}", look_at_block)
    router.add_get(f"{prefix}/events/kv", kv_events, allow_head=False)
    router.add_get(f"{prefix}/events/chart", chart_events, allow_head=False)
    public = [router.add_get(f"{prefix}/health", health)]
    public += [router.add_get(prefix + path, handler) for path, handler in pages]
    return public
