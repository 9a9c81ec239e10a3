"""What a front end is sent."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpage.errors import Failure
from asyncpage.messages.values import FinishReason, Int32, RequestId


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is queued: from here on it has exactly one `Finish`."""

    request: RequestId
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not queued, and why."""

    request: RequestId
    failure: Failure


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token as the API shows it. `logprob` None: the first prompt token has none."""

    token: int
    text: str
    raw: bytes
    logprob: float | None
    rank: int
    top: tuple[tuple[int, str, bytes, float], ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The one terminal outcome. `stop_reason`: the stop string or token id that matched."""

    request: RequestId
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    stop_reason: str | int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """What may be sent to clients after one step.

    `requests`, `texts`: one entry a request that has something to say (text may be empty when only ids or
    logprobs are new). `token_ids`, `counts`: the new tokens behind each entry. `logprobs`: aligned with
    `requests`, None when nobody asked. A finish comes after its request's last text.
    """

    requests: tuple[RequestId, ...]
    texts: tuple[str, ...]
    counts: Int32
    token_ids: Int32
    logprobs: tuple[tuple[TokenLogprob, ...] | None, ...] | None = None
    prompt_logprobs: tuple[tuple[RequestId, tuple[TokenLogprob, ...]], ...] = ()
    finishes: tuple[Finish, ...] = ()
