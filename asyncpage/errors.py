"""The closed set of errors that asyncpage raises, and the one failure value that travels in messages.

Each text says what happened, what was found and what to do.

INVARIANT: whatever a client can cause is a `RequestError`, and a `RequestError` harms one request only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one request was refused or failed, as a value that can cross a process.

    `status` is the HTTP status that fits, `code` the machine-readable word in the field's error shape,
    `param` the dotted path of the field at fault, `retry_after_s` is set when asking again later makes sense.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None


class AsyncpageError(Exception):
    """Base of every error that asyncpage raises on purpose; its text is fit for a user's eyes."""


class UsageError(AsyncpageError):
    """A setting, flag or environment that cannot work; the command line prints it and exits with 2."""


class Stalled(AsyncpageError):
    """A simulation in which everything waits, and no timer is set that could end it."""


class ModelError(AsyncpageError):
    """A model that is missing, malformed or of a kind this version does not run."""


class FormatError(ModelError):
    """A file that breaks its format: names the file, the tensor (or section) and the reason."""

    def __init__(self, file: str, where: str, reason: str) -> None:
        super().__init__(f"{file}: {where}: {reason}")
        self.file = file
        self.where = where
        self.reason = reason


class RequestError(AsyncpageError):
    """One request is refused or failed; carries the `Failure` that its client sees."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(status, message, code, param, retry_after_s)


def request_error(failure: Failure) -> RequestError:
    """The exception form of a failure that arrived in a message."""
    return RequestError(
        failure.message,
        status=failure.status,
        code=failure.code,
        param=failure.param,
        retry_after_s=failure.retry_after_s,
    )


class ExecutorError(AsyncpageError):
    """The executor could not start, or was lost more often than its restart budget allows."""


class ProtocolError(AsyncpageError):
    """Bytes on a ring or link that are not a frame or message of this version."""


class JournalError(AsyncpageError):
    """A journal that is missing, damaged, or not one that can do what was asked of it."""


class LinkClosed(AsyncpageError):
    """The other end of a link is gone."""


class MailboxFull(AsyncpageError):
    """An inner mailbox overflowed: these are sized for the admitted maximum, so this is a bug."""


class ActorDied(AsyncpageError):
    """An actor that cannot be restarted has raised; the process ends with exit code 70."""


class UnknownMessage(AsyncpageError):
    """A message reached an actor that has no arm for it."""

    def __init__(self, actor: object, message: object) -> None:
        super().__init__(f"{type(actor).__name__} has no arm for {type(message).__name__}")
