"""What the routes of one server share: engine, settings, counters, and the calls and feeds that are open.

`create_app` makes it; handlers find it under `CONTEXT` in the application, and a request's id under `REQUEST_ID`.

INVARIANT: an exchange is in `open_calls`, a feed in `open_feeds`, exactly while its handler runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web

from asyncpage.errors import Failure, request_error
from asyncpage.server.config import ServerConfig
from asyncpage.server.engine_port import Engine
from asyncpage.server.exchange import Exchange
from asyncpage.server.failure import not_ready
from asyncpage.server.metrics import Metrics
from asyncpage.server.pace import Pace


class Feed(Protocol):
    """A stream that goes on until somebody ends it."""

    def close(self) -> None:
        """Nothing new comes; the stream ends after what waits."""
        ...


@dataclass(slots=True)
class Context:
    """One server's own state. `is_draining`: no new calls, whatever the engine says.

    `comparison`: the figures of both prefix indexes, where there are any to show.
    """

    engine: Engine
    config: ServerConfig
    metrics: Metrics
    pace: Pace
    started: int
    comparison: Mapping[str, Any] | None = None
    is_draining: bool = False
    open_calls: set[Exchange] = field(default_factory=set)
    open_feeds: set[Feed] = field(default_factory=set)

    @property
    def state(self) -> str:
        """The engine's state, or draining once the server is."""
        state = self.engine.state
        return "draining" if self.is_draining and state != "dead" else state

    def check_ready(self) -> None:
        """Errors: `RequestError` 503 with Retry-After unless new calls are taken."""
        failure = self.reason_not_ready()
        if failure is not None:
            raise request_error(failure)

    def reason_not_ready(self) -> Failure | None:
        state = self.state
        return None if state == "ready" else not_ready(state)

    def fail_open_calls(self, failure: Failure) -> None:
        """Every open call ends with this failure: an error status, or an error event where a stream has begun."""
        for exchange in tuple(self.open_calls):
            exchange.fail(failure)

    def end_feeds(self) -> None:
        """Every feed ends after what waits: there is no last event for a drain to wait for."""
        for feed in tuple(self.open_feeds):
            feed.close()


CONTEXT = web.AppKey("context", Context)
REQUEST_ID = web.RequestKey("request_id", str)
