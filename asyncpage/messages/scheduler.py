"""What the scheduler is sent."""

from __future__ import annotations

from dataclasses import field

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages.tokenizer import RequestOptions
from asyncpage.messages.values import EMPTY, EMPTY_PAIRS, Int32, Logprobs, PromptLogprobs, RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
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


@record(frozen=True, slots=True)
class Admission:
    """A waiting request was given a row: `computed` of its tokens came from the cache.

    `tables`: one block table a group, int32 little-endian, complete up to `computed + count` tokens.
    """

    request: RequestId
    row: int
    computed: int
    count: int
    tables: tuple[bytes, ...]


@record(frozen=True, slots=True, eq=False)
class Granted:
    """The KV manager's answer to `Reserve`: who runs in this step, with how many tokens, in which blocks.

    `rows`, `counts`: [R] who runs, those that ran before first. `blocks`: [N, 4] columns row, group, index, block, for
    rows that were already running. `copies`, `saves`, `loads`: as `Step` has them. `victims`: rows preempted, whose
    blocks are gone. `parked`: candidates that wait for blocks which somebody is computing or fetching at this moment;
    `woken`: those that need wait no longer. `hits`: watched requests and how many of their blocks are cached now.
    `steps`: for how many steps like this one it holds, as long as nobody comes or goes.
    """

    number: int
    rows: Int32
    counts: Int32
    blocks: Int32
    copies: Int32
    victims: tuple[int, ...]
    admitted: tuple[Admission, ...]
    free_blocks: int
    parked: tuple[RequestId, ...] = ()
    woken: tuple[RequestId, ...] = ()
    hits: tuple[tuple[RequestId, int], ...] = ()
    saves: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    loads: Int32 = field(default_factory=lambda: EMPTY_PAIRS)
    steps: int = 1


@record(frozen=True, slots=True)
class Pooled:
    """The vector of a row whose whole prompt is computed. `embedding`: float32 little-endian."""

    row: int
    embedding: bytes


@record(frozen=True, slots=True, eq=False)
class StepDone:
    """The executor finished a step.

    `rows` [R]: rows that sampled; `counts` [R]: tokens each got (1, and one more for each draft that stood); `tokens`:
    [sum counts]; `drafted` [R]: drafts that each tried, empty when none did; `draft_us`: what making them took of
    `elapsed_us`.
    `logprobs`: aligned with `tokens`, None when no row asked. `failed`: rows that failed alone, with the reason.
    `pooled`: rows that were to be pooled, in the step that computed their last token. `late`: rows that were to sample
    and could not yet: the last token that they computed counts as not computed, and the next step brings it again.
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
    pooled: tuple[Pooled, ...] = ()
    late: tuple[int, ...] = ()
    drafted: Int32 = field(default_factory=lambda: EMPTY)
    draft_us: int = 0


@record(frozen=True, slots=True)
class StepFailed:
    """The batched forward raised; the executor lives, has dropped its rows and waits for the next epoch."""

    number: int
    epoch: int
    reason: str


@record(frozen=True, slots=True)
class ExecutorLost:
    """The executor of this epoch is gone, with every block it held."""

    epoch: int
    reason: str


@record(frozen=True, slots=True)
class ExecutorReady:
    """A new executor has loaded the same model; steps may be sent with an epoch of at least `epoch`."""

    epoch: int


@record(frozen=True, slots=True)
class ExecutorGone:
    """The restart budget is spent: nothing will run again, every request fails with this reason."""

    reason: str


@record(frozen=True, slots=True)
class Ended:
    """The detokenizer matched a stop string: the request is over after `tokens` output tokens."""

    request: RequestId
    tokens: int


@record(frozen=True, slots=True)
class Expired:
    """The deadline of a request has passed (the scheduler's own timer)."""

    request: RequestId


@record(frozen=True, slots=True)
class Drain:
    """Refuse what comes from now on with 503; what was accepted runs to its end."""


@record(frozen=True, slots=True)
class Stirred:
    """Blocks have come from files, so `woken` candidates need wait no longer; or there are blocks to save."""

    woken: tuple[RequestId, ...] = ()
