"""Where log events go and how they look: structlog, set up once by the command line.

Every room logs events through `structlog.get_logger`; a library that nobody configured stays quiet below warnings.

INVARIANT: log lines go to the given stream (standard error), never to standard output, which belongs to answers; a
stream that cannot be written costs lines, never the work that logs.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog
from structlog.typing import Processor


def configure_logs(level: str, style: str, stream: TextIO | None = None) -> None:
    """Show events of at least `level` (debug, info, warning, error), as `console` lines or `json` objects.

    `stream`: standard error, whatever it is at the moment, when None. Errors: `ValueError` for another level or style.
    """
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level not in levels:
        raise ValueError(f"log level must be one of {', '.join(levels)}; got {level!r}")
    out = stream if stream is not None else sys.stderr
    stamp: Processor
    shape: tuple[Processor, ...]
    match style:
        case "json":
            stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
            # Without local variables: they would put prompts and keys into the log.
            frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            shape = (structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer())
        case "console":
            stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            shape = (
                structlog.dev.ConsoleRenderer(
                    colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=24
                ),
            )
        case _:
            raise ValueError(f"log format must be console or json; got {style!r}")
    structlog.configure(
        processors=[structlog.processors.add_log_level, stamp, *shape],
        wrapper_class=structlog.make_filtering_bound_logger(levels[level]),
        logger_factory=lambda *_: _Lines(stream if stream is not None else sys.stderr),
        cache_logger_on_first_use=False,  # loggers are module globals: cached ones would keep the first set-up
    )


def configure_logs_unless_set() -> None:
    """Warnings and errors on standard error, unless the embedding program has set structlog up."""
    if not structlog.is_configured():
        configure_logs("warning", "console")


class _Lines(structlog.PrintLogger):
    """Prints a line where that can be done: an actor must not die of a closed pipe or a full disk."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = error = err = critical = fatal = exception = failure = msg
