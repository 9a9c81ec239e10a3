"""What the server needs from an engine, and nothing more: the seam between HTTP and the actors.

The routes call an `Engine`; the engine calls back the `Sink` that came with a request. Both sides live on one loop.

INVARIANT: after `refused` or `finished` a sink hears nothing more of that request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from asyncpage.actors.frontend import Sink
from asyncpage.adapters.shelf import AdapterShelf
from asyncpage.core.sampling import SamplingParams
from asyncpage.grammar.source import GrammarSource
from asyncpage.lookout import Lookout
from asyncpage.messages import ChatPrompt, Constraint, Pooling, Prompt, RequestId, RequestOptions
from asyncpage.pipes.cache_feed import CacheFeed
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.token_logprobs import TokenTable
from asyncpage.text.tools.parser import ToolParser


class Engine(Protocol):
    """An engine as the server sees it."""

    on_death: Callable[[str], None]
    """Called in the loop, with the reason, when an actor died that cannot be restarted."""

    @property
    def state(self) -> str:
        """loading, ready, restarting, draining or dead."""
        ...

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model itself that requests may use; the first is the one shown."""
        ...

    @property
    def adapters(self) -> AdapterShelf:
        """What runs beside it: adapters, each a model to requests."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of weights, arithmetic and code: equal ones compute the same answer from the same seed."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokens(self) -> TokenTable:
        """What single tokens look like."""
        ...

    @property
    def tokenizer_info(self) -> Mapping[str, object]:
        """Texts of special tokens by role, and the chat template, for JSON."""
        ...

    @property
    def lookout(self) -> Lookout:
        """What can be seen of the engine while it runs."""
        ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def max_requests(self) -> int:
        """Requests that may wait and run at once: a call with more choices could never be accepted whole."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def is_generative(self) -> bool:
        """Whether it answers prompts with text; one that does not makes vectors only."""
        ...

    @property
    def pooling(self) -> Pooling | None:
        """How prompts become vectors; None where they do not."""
        ...

    @property
    def hidden_size(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def tool_parser(self) -> ToolParser | None:
        """What reads the calls of tools in the model's answers, None where no parser is known to."""
        ...

    @property
    def reasoning_parser(self) -> ReasoningParser | None:
        """What tells thinking from answer, None where the model does not think aloud."""
        ...

    def prompt_end(self, prompt: ChatPrompt) -> str:
        """What the chat template writes for the answer to begin behind, in a conversation like this one."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Values of `SamplingParams` fields for what a request does not say."""
        ...

    def submit(self, prompt: Prompt, sampling: SamplingParams, options: RequestOptions, sink: Sink) -> RequestId:
        """Start `sampling.n` requests with consecutive ids and return the first.

        Errors: `RequestError` when the engine takes nothing.
        """
        ...

    async def compile_grammar(self, source: GrammarSource) -> Constraint:
        """What `RequestOptions.constraint` takes.

        Errors: `RequestError` 400 whose `param` is the place inside the grammar, 429 and 503 when nothing compiles.
        """
        ...

    def cancel(self, request: RequestId) -> None:
        """End a request whose client has left; unknown and ended ids are ignored."""
        ...

    async def tokenize(self, prompt: Prompt) -> Sequence[int]:
        """The ids that the prompt would run with; it may be longer than the context.

        Errors: `RequestError` when it has no ids.
        """
        ...

    async def ping(self, timeout_s: float) -> Mapping[str, Mapping[str, float]]:
        """Every actor's stats, by actor name. Errors: `TimeoutError` when one does not answer."""
        ...

    async def reset_prefix_cache(self) -> int:
        """Let no prefix that was computed so far be found again; the blocks dropped.

        Errors: `TimeoutError` when no answer comes, `RequestError` when too many ask.
        """
        ...

    async def why(self, label: str) -> Mapping[str, object] | None:
        """What the request of this label found in the prefix cache and why no more, for JSON; None: not remembered.

        Errors: as for `reset_prefix_cache`.
        """
        ...

    def follow_cache_events(self) -> CacheFeed:
        """What the prefix cache stores and removes from now on. Errors: `RequestError` when too many follow."""
        ...

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what runs; False when some of it still does at the end of the time."""
        ...

    def now(self) -> float:
        """Seconds on the clock that deadlines are on."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...
