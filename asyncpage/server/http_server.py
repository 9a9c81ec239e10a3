"""The listening server: binds, serves, drains and stops.

The command line and tests run it; it runs the application on aiohttp.

INVARIANT: after `stop` nothing listens, every open call had an end, and a Unix socket's file is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable

import structlog
from aiohttp import web

from asyncpage.errors import ActorDied, Failure, UsageError
from asyncpage.server.app import create_app
from asyncpage.server.config import ServerConfig
from asyncpage.server.connection import Runner
from asyncpage.server.context import CONTEXT
from asyncpage.server.engine_port import Engine
from asyncpage.server.tls import load_tls

log = structlog.get_logger("asyncpage.server")

LAST_WORDS_S = 5.0
"""How long `stop` waits for clients to read the end of their answers."""


class HttpServer:
    """One listening socket over one engine; the engine is the caller's to start and stop."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        """Errors: `UsageError` for settings that cannot work."""
        app = create_app(engine, config)
        self._engine = engine
        self._config = config
        self._context = app[CONTEXT]
        self._runner = Runner(app, shutdown_timeout=LAST_WORDS_S)
        self._tls = load_tls(config)
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Where to reach it, once started: `http://host:port`, `https://host:port` or `unix:path`."""
        return self._url or ""

    async def start(self) -> None:
        """Listen. Errors: `UsageError` when the address cannot be had."""
        config = self._config
        await self._runner.setup()
        try:
            if config.uds is not None:
                self._url = await self._listen_unix(config.uds)
            else:
                site = web.TCPSite(self._runner, config.host, config.port, backlog=1024, ssl_context=self._tls)
                await site.start()
                host = f"[{config.host}]" if ":" in config.host else config.host
                self._url = f"{'http' if self._tls is None else 'https'}://{host}:{site.port}"
        except OSError as error:
            await self._runner.cleanup()
            where = config.uds or f"{config.host}:{config.port}"
            raise UsageError(
                f"cannot listen on {where}: {error.strerror or error}; choose another with --host, --port or --uds"
            ) from None
        except UsageError:
            await self._runner.cleanup()
            raise
        log.info("server.started", url=self._url)
        if not config.api_key and not config.is_local:
            log.warning("server.exposed", url=self._url, advice="anyone who can reach it can use it; set --api-key")

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse new calls and let the open ones finish; False when some still run at the end of the time.

        `timeout_s`: the configured drain time when None.
        """
        self._context.is_draining = True
        self._context.end_feeds()
        timeout_s = self._config.drain_timeout_s if timeout_s is None else timeout_s
        log.info("server.draining", open=len(self._context.open_calls), timeout_s=timeout_s)
        return await self._engine.drain(timeout_s)

    async def stop(self) -> None:
        """End what is still open with an error, then close every connection and the socket."""
        self._context.is_draining = True
        self._context.end_feeds()
        self.fail_open_calls("the server is shutting down; send the request to another one", 503, "draining")
        await self._runner.cleanup()
        if self._config.uds is not None and self._url is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._config.uds)
        log.info("server.stopped", url=self._url)

    def fail_open_calls(self, reason: str, status: int, code: str) -> None:
        """Give every open call this error as its end."""
        self._context.fail_open_calls(Failure(status, reason, code=code, retry_after_s=5.0))

    async def _listen_unix(self, path: str) -> str:
        _free_socket_path(path)
        await web.UnixSite(self._runner, path, backlog=1024).start()
        os.chmod(path, 0o600)
        return f"unix:{path}"


async def serve_http(
    engine: Engine,
    config: ServerConfig,
    *,
    shutdown: asyncio.Event,
    abort: asyncio.Event | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve until `shutdown` is set, then drain and stop. `abort` cuts the drain short; `on_start` gets the URL.

    Errors: `UsageError` when the address cannot be had; `ActorDied` when the engine died, after every open call got
    its error.
    """
    server = HttpServer(engine, config)
    abort = abort or asyncio.Event()
    deaths: list[str] = []
    report = engine.on_death

    def died(reason: str) -> None:
        deaths.append(reason)
        server.fail_open_calls(f"the engine has stopped: {reason}", 500, "engine_dead")
        shutdown.set()
        abort.set()
        report(reason)

    await server.start()
    engine.on_death = died
    try:
        if on_start is not None:
            on_start(server.url)
        await shutdown.wait()
        await _drain_until(server, abort)
    finally:
        engine.on_death = report
        await server.stop()
    if deaths:
        raise ActorDied(deaths[0])


async def _drain_until(server: HttpServer, abort: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(server.drain())
        aborting = tasks.create_task(abort.wait())
        await asyncio.wait((draining, aborting), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        aborting.cancel()


def _free_socket_path(path: str) -> None:
    """Remove what a server that is gone has left there. Errors: `UsageError` for a file or a live server's socket."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"cannot listen on {path}: it exists and is no socket; choose another path with --uds")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise UsageError(f"cannot listen on {path}: another server does; choose another path with --uds")
