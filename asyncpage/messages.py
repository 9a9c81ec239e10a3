"""Every message that actors send, grouped by receiver; a verb asks, a past fact tells.

All are values: frozen, complete at birth, made of numbers, strings, bytes, tuples and int32 or float32 columns
(numpy arrays that nobody writes after sending). Per step there are five, whatever the batch size:
`Reserve`, `Granted`, `Step`, `StepDone`, `StepTokens`.

INVARIANT: a request that was accepted has exactly one `Finish` in one `Texts`; one that was not has one `Refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

RequestId = NewType("RequestId", int)
"""One choice of one prompt. The top bits name the front end that waits for it, so an answer finds its way."""

FRONTEND_SHIFT = 48

FinishReason = Literal["stop", "length", "abort", "error"]

EMPTY: Int32 = np.empty(0, dtype=np.int32)
EMPTY.flags.writeable = False
EMPTY_BLOCKS: Int32 = np.empty((0, 4), dtype=np.int32)
EMPTY_BLOCKS.flags.writeable = False
EMPTY_PAIRS: Int32 = np.empty((0, 2), dtype=np.int32)
EMPTY_PAIRS.flags.writeable = False


def frontend_of(request: RequestId) -> int:
    """The index of the front end that waits for this request."""
    return request >> FRONTEND_SHIFT


# --- any actor ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you turning? Answered with `Pong` by the runtime after the mailbox before it was worked off."""

    token: int
    frontend: int


# --- tokenizer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text; control tokens in it are parsed."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, int32 little-endian."""

    tokens: bytes


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template; text of control tokens inside it stays plain text.

    `messages` are mappings with `role` and `content` (a string, text parts already joined) and whatever else the
    template reads; `kwargs` are further template variables.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks of the engine, beside sampling.

    `priority`: smaller runs earlier. `deadline`: on the engine's clock, None for never. `cache_salt` separates
    tenants in the prefix cache; `use_cache` False neither reads nor feeds it. `echo` puts the prompt's text in
    front of the answer. `truncate_prompt_tokens` keeps that many tokens from the prompt's end. `label` is the
    client-visible id, for logs.
    """

    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    use_cache: bool = True
    echo: bool = False
    truncate_prompt_tokens: int | None = None
    adapter: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Tokenize:
    """A validated prompt wants to run: render, encode, hash, then `Admit`.

    `request` is the first of `sampling.n` consecutive ids, one a choice.
    """

    request: RequestId
    prompt: Prompt
    sampling: SamplingParams
    options: RequestOptions


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client has left. Goes by the tokenizer, so that it can never overtake its own `Admit`."""

    request: RequestId


# --- scheduler ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """A tokenised prompt asks for a place in the batch, once for each of its `sampling.n` choices.

    `tokens`: int32 little-endian. `names`: the hash chain of the prompt's full blocks (32 bytes each), empty when
    the request refuses the cache. `bad_word_ids`: token sequences that may not be completed.
    """

    request: RequestId
    tokens: bytes
    names: tuple[bytes, ...]
    sampling: SamplingParams
    options: RequestOptions
    bad_word_ids: tuple[tuple[int, ...], ...] = ()

    @property
    def requests(self) -> tuple[RequestId, ...]:
        """The ids of its choices."""
        return tuple(RequestId(self.request + choice) for choice in range(self.sampling.n))


@dataclass(frozen=True, slots=True)
class Admission:
    """A waiting request was given a row: `computed` of its tokens came from the cache.

    `tables`: one block table a group, int32 little-endian, complete up to `computed + count` tokens.
    """

    request: RequestId
    row: int
    computed: int
    count: int
    tables: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Granted:
    """The KV manager's answer to `Reserve`: who runs in this step, with how many tokens, in which blocks.

    `rows`, `counts`: [R] in running order, then the admitted. `blocks`: [N, 4] columns row, group, index, block,
    for rows that were already running. `copies`: [C, 2] source, destination, done before the step's writes.
    `victims`: rows preempted, whose blocks are gone.
    """

    number: int
    rows: Int32
    counts: Int32
    blocks: Int32
    copies: Int32
    victims: tuple[int, ...]
    admitted: tuple[Admission, ...]
    free_blocks: int


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-probabilities before any sampling change, one entry a token position.

    `token_logprobs`, `ranks`: [P] of the chosen token (rank 1 is the most likely).
    `top_ids`, `top_logprobs`: [P, K] the K most likely, best first, ties to the lowest id.
    """

    token_logprobs: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32


@dataclass(frozen=True, slots=True, eq=False)
class PromptLogprobs:
    """Log-probabilities of prompt tokens `start` .. `start + P` of one row (the token at 0 has none).

    A prompt that is computed again after a preemption is told again; the detokenizer drops what it has told.
    """

    row: int
    start: int
    tokens: Int32
    logprobs: Logprobs


@dataclass(frozen=True, slots=True, eq=False)
class StepDone:
    """The executor finished a step.

    `rows` [R]: rows that sampled; `counts` [R]: tokens each accepted (1, more with drafts); `tokens`: [sum counts].
    `logprobs`: aligned with `tokens`, None when no row asked. `failed`: rows that failed alone, with the reason.
    """

    number: int
    epoch: int
    rows: Int32
    counts: Int32
    tokens: Int32
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    elapsed_us: int = 0


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The batched forward raised; the executor lives, has dropped its rows and waits for the next epoch."""

    number: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executor of this epoch is gone, with every block it held."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorReady:
    """A new executor has loaded the same model; steps may be sent with an epoch of at least `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ExecutorGone:
    """The restart budget is spent: nothing will run again, every request fails with this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The detokenizer matched a stop string: the request is over after `tokens` output tokens."""

    request: RequestId
    tokens: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The deadline of a request has passed (the scheduler's own timer)."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse what comes from now on with 503; what was accepted runs to its end."""


# --- KV manager --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request in policy order.

    `known`: tokens it has (prompt and accepted output) and may compute. `names`: the hash chain of its full blocks
    as far as known, which starts at `root`.
    `fork_row`: the row of the sibling whose blocks it may share (copy on write), -1 for none.
    `read_cache`, `feed_cache`: whether it may match the prefix index, and whether its blocks are published.
    """

    request: RequestId
    known: int
    root: bytes
    names: tuple[bytes, ...]
    fork_row: int = -1
    read_cache: bool = True
    feed_cache: bool = True


@dataclass(frozen=True, slots=True)
class FilledBlocks:
    """Blocks `first` .. `last` (exclusive) of a running row hold computed, accepted tokens and may be named.

    `tokens`: ids of those blocks beyond the names that came with the candidate, int32 little-endian; the KV manager
    extends the row's chain with them.
    """

    row: int
    first: int
    last: int
    tokens: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Reserve:
    """Settle step `number`: the running pass over `rows`, then the waiting pass over `candidates`.

    `rows`, `computed`, `wants`: [R] in policy order, wants already clipped by context and long-prefill share.
    `victims`: [R] the same rows, first to be preempted first. `returned`: every step up to this number is back.
    `released`: rows that ended since the last settlement. `filled`: blocks that became full.
    `free_rows`: rows for the admitted, in the order to use them.
    """

    number: int
    returned: int
    rows: Int32
    computed: Int32
    wants: Int32
    victims: Int32
    candidates: tuple[Candidate, ...]
    budget_tokens: int
    free_rows: tuple[int, ...]
    released: tuple[int, ...] = ()
    filled: tuple[FilledBlocks, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewind:
    """No step is in flight any more and no row exists; `forget` says that the blocks' contents are gone too."""

    forget: bool


# --- executor (the near end and, over the ring, the process) --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request moves into a row, whole.

    `tokens`: everything known, int32 little-endian, of which the first `prompt_tokens` are the prompt and the
    first `computed` have their KV in place. `tables`: one a group. `end_token_ids`: ids that end the request
    (masked until `sampling.min_tokens`). `seed`: of the counter-based generator. `adapter_slot` 0 is the base.
    """

    row: int
    request: RequestId
    tokens: bytes
    prompt_tokens: int
    computed: int
    tables: tuple[bytes, ...]
    sampling: SamplingParams
    seed: int
    end_token_ids: tuple[int, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    adapter_slot: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step's work, as differences to the executor's own state.

    Applied in this order: `removed` rows, `added` rows, `blocks`, `copies`; then each of `rows` computes its next
    `counts` tokens and, when it has caught up with what it knows, samples. `drafts`: [D, 2] row, token.
    A greater `epoch` than the executor's means: start with no rows.
    """

    number: int
    epoch: int
    rows: Int32
    counts: Int32
    removed: Int32 = field(default_factory=lambda: EMPTY)
    added: tuple[NewRow, ...] = ()
    blocks: Int32 = field(default_factory=lambda: EMPTY_BLOCKS)
    copies: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    drafts: Int32 = field(default_factory=lambda: EMPTY_PAIRS)


@dataclass(frozen=True, slots=True)
class Load:
    """The first message to an executor process: what to load and how. `settings` are plain values."""

    settings: Mapping[str, Any]
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table. `window` 0 is full attention."""

    kind: Literal["full", "window"]
    window: int
    layers: int


@dataclass(frozen=True, slots=True)
class Handshake:
    """The executor has loaded: what it holds and can do. A successor must show the same `fingerprint`."""

    fingerprint: str
    pid: int
    rank: int
    blocks: int
    block_size: int
    groups: tuple[LayerGroup, ...]
    max_model_len: int
    vocab_size: int
    dtype: str
    kv_dtype: str
    device: str
    attention_backend: str
    load_ms: int
    kv_bytes: int
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The executor cannot load: `kind` is the name of the error class, `reason` its one-line text."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish what is in the ring and leave."""


# --- detokenizer -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expect:
    """A request was accepted and will produce tokens. `echo`: prompt ids to put first, int32 little-endian."""

    request: RequestId
    sampling: SamplingParams
    prompt_tokens: int
    echo: bytes = b""


@dataclass(frozen=True, slots=True)
class End:
    """The scheduler ends a request. `stop_token`: the id that ended it, if one did."""

    request: RequestId
    reason: FinishReason
    stop_token: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A request got a row for the first time: `cached_tokens` of its prompt were not computed again."""

    request: RequestId
    cached_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """Accepted tokens of one step, in columns, and the requests that are over after them.

    `requests`: one a row; `counts` [R]; `tokens` [sum counts]; `logprobs` aligned with `tokens` or None.
    """

    requests: tuple[RequestId, ...]
    counts: Int32
    tokens: Int32
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[tuple[RequestId, PromptLogprobs], ...] = ()
    started: tuple[Started, ...] = ()
    ends: tuple[End, ...] = ()


# --- front end ---------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Pong:
    """An actor turns; `stats` are its gauges and counters at this moment, plain numbers by name."""

    token: int
    actor: str
    stats: Mapping[str, float]


ToTokenizer = Tokenize | Cancel
ToScheduler = (
    Admit
    | Cancel
    | Granted
    | StepDone
    | StepFailed
    | ExecutorLost
    | ExecutorReady
    | ExecutorGone
    | Ended
    | Expired
    | Drain
)
ToKvManager = Reserve | Rewind
ToExecutor = Step | Load | Shutdown
FromExecutor = StepDone | StepFailed | Handshake | LoadFailed
ToDetokenizer = Expect | StepTokens
ToFrontend = Accepted | Refused | Texts | Pong
