"""What a front end is sent."""

from __future__ import annotations

from typing import Any

from asyncpage.errors import Failure
from asyncpage.messages.values import FinishReason, Int32, Logprobs, PromptLogprobs, RequestId
from asyncpage.records import record

LogprobEntry = tuple[Any, ...]
"""What sinks hear of one token: its id, its log-probability, its rank; then the ids of the most likely ones, best
first; then their log-probabilities. A prompt's first token has None and no others; its id is -1 where it was not told.
Flat, for one is made for every token: what holds no container costs the garbage collector nothing."""


@record(frozen=True, slots=True)
class Accepted:
    """The request is queued: from here on it has exactly one `Finish`."""

    request: RequestId
    prompt_tokens: int


@record(frozen=True, slots=True)
class Refused:
    """The request was not queued, and why."""

    request: RequestId
    failure: Failure


@record(frozen=True, slots=True)
class Encoded:
    """A prompt that only its ids were wanted of. `tokens`: int32 little-endian."""

    request: RequestId
    tokens: bytes


@record(frozen=True, slots=True)
class Finish:
    """The one terminal outcome. `stop_reason`: the stop string or token id that matched.

    `accepted_drafts`: its tokens that had been guessed ahead; `rejected_drafts`: guesses that are none of them.
    `embedding`: float32 little-endian, of a prompt that was to be pooled; it comes with the end, so neither is there
    without the other.
    """

    request: RequestId
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    stop_reason: str | int | None = None
    failure: Failure | None = None
    embedding: bytes = b""
    accepted_drafts: int = 0
    rejected_drafts: int = 0


@record(frozen=True, slots=True, eq=False)
class Texts:
    """What may be sent to clients after one step.

    `requests`, `texts`: one entry a request that has something to say (text may be empty when only ids or
    logprobs are new). `token_ids`, `counts`: the new tokens behind each entry. `logprobs`: aligned with `token_ids`,
    of every token, None when nobody asked. `prompt_logprobs`: for those who asked, each position once and in order;
    a part that starts at 0 is the first token alone, which has no numbers. A finish comes after its request's last
    text.
    """

    requests: tuple[RequestId, ...]
    texts: tuple[str, ...]
    counts: Int32
    token_ids: Int32
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[tuple[RequestId, PromptLogprobs], ...] = ()
    finishes: tuple[Finish, ...] = ()
