"""What the detokenizer is sent."""

from __future__ import annotations

from dataclasses import field

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure
from asyncpage.messages.values import EMPTY, FinishReason, Int32, Logprobs, PromptLogprobs, RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class Expect:
    """A request was accepted and will produce tokens. `echo`: prompt ids to put first, int32 little-endian."""

    request: RequestId
    sampling: SamplingParams
    prompt_tokens: int
    echo: bytes = b""


@record(frozen=True, slots=True)
class End:
    """The scheduler ends a request. `stop_token`: the id that ended it, if one did. `embedding`: as in `Finish`."""

    request: RequestId
    reason: FinishReason
    stop_token: int | None = None
    failure: Failure | None = None
    embedding: bytes = b""


@record(frozen=True, slots=True)
class Started:
    """A request got a row for the first time: `cached_tokens` of its prompt were not computed again."""

    request: RequestId
    cached_tokens: int


@record(frozen=True, slots=True, eq=False)
class StepTokens:
    """Accepted tokens of one step, in columns, and the requests that are over after them.

    `requests`: one a row; `counts` [R]; `tokens` [sum counts]; `logprobs` aligned with `tokens` or None. `drafted` [R]:
    drafts that each row tried, of which all but one of its `counts` stood; empty when none did.
    """

    requests: tuple[RequestId, ...]
    counts: Int32
    tokens: Int32
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[tuple[RequestId, PromptLogprobs], ...] = ()
    started: tuple[Started, ...] = ()
    ends: tuple[End, ...] = ()
    drafted: Int32 = field(default_factory=lambda: EMPTY)
