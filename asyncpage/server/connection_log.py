"""What aiohttp's connections have to say, as events of ours: a client's garbage is no fault and gets no traceback.

The HTTP server gives it to aiohttp as the logger of every connection.

INVARIANT: only a fault of this process is logged as an error.
"""

from __future__ import annotations

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = structlog.get_logger("asyncpage.server")

_CLIENTS_FAULTS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)


class ConnectionLog:
    """Takes the calls that aiohttp makes to a `logging.Logger`."""

    def debug(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        """aiohttp tells here of clients that left; the routes have told of it already."""

    def warning(self, message: str, *values: object) -> None:
        log.warning("connection.warned", reason=message % values)

    def exception(self, message: str, *values: object, exc_info: BaseException | None = None) -> None:
        """A connection ended by an error: malformed HTTP, which is the client's, or something of ours."""
        if isinstance(exc_info, _CLIENTS_FAULTS):
            log.info("connection.refused", error=type(exc_info).__name__)
        else:
            log.error("connection.failed", reason=message % values, exc_info=exc_info)
