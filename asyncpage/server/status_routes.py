"""How the server is: alive, ready, which version, and its numbers for Prometheus.

Probes, load balancers and dashboards ask; the application's router calls these.

INVARIANT: /health only says that the loop turns; /ready says whether a call sent now would be taken, and asks the
actors before it says yes.
"""

from __future__ import annotations

from aiohttp import web

import asyncpage
from asyncpage.errors import Failure
from asyncpage.server.context import CONTEXT
from asyncpage.server.failure import error_response
from asyncpage.server.metrics import CONTENT_TYPE, Stats

PING_TIMEOUT_S = 1.0
"""How long an actor may take to answer: many steps, and less than a probe waits."""


async def health(request: web.Request) -> web.Response:
    """GET /health, GET and POST /ping: 200 while the loop turns, also while the executor restarts."""
    return web.json_response({"status": "ok", "state": request.app[CONTEXT].state})


async def ready(request: web.Request) -> web.Response:
    """GET /ready: 200 when calls are taken and every actor answers, else 503 with the reason."""
    context = request.app[CONTEXT]
    failure = context.reason_not_ready()
    if failure is None:
        try:
            await context.engine.ping(PING_TIMEOUT_S)
        except TimeoutError as error:
            text = f"not ready: an actor did not answer within {PING_TIMEOUT_S:g} s ({error})"
            failure = Failure(503, text, code="not_answering", retry_after_s=5.0)
        else:
            failure = context.reason_not_ready()
    if failure is not None:
        return error_response(failure)
    return web.json_response({"status": "ready"})


async def load(request: web.Request) -> web.Response:
    """GET /load: how many calls this server is busy with, for balancers that ask before they send."""
    return web.json_response({"server_load": len(request.app[CONTEXT].open_calls)})


async def version(request: web.Request) -> web.Response:
    """GET /version"""
    return web.json_response({"version": asyncpage.__version__})


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics: the server's counters and every actor's numbers of this moment."""
    context = request.app[CONTEXT]
    stats: Stats = {}
    is_complete = False
    if context.state not in ("loading", "dead"):
        try:
            stats = await context.engine.ping(PING_TIMEOUT_S)
            is_complete = True
        except TimeoutError:
            pass
    return web.Response(
        body=context.metrics.render(stats, is_complete=is_complete), headers={"Content-Type": CONTENT_TYPE}
    )
