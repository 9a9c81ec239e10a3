"""One generation call, completely validated: what to run and how its answer is to look.

The body readers make it; the generate route runs it. A call has `prompts` times `sampling.n` choices, and choice
`i` of prompt `p` has index `p * n + i` in the answer.

INVARIANT: nothing in a call can be refused by the server any more; only the engine may still refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncpage.core.sampling import SamplingParams
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import Prompt, RequestOptions
from asyncpage.text.reply import PlainReader, ReplyReader


@dataclass(frozen=True, slots=True)
class Output:
    """What the answer shows.

    `logprobs`: entries for generated tokens, with that many alternatives each (None: none). `prompt_logprobs`: the
    same for the prompt as a list of its own. `echo`: the prompt's text stands in front of the answer's. `repeated`:
    fields that the answer has from its request, as they were understood. `encoding_format`: of vectors.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    return_token_ids: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)
    encoding_format: str = "float"


@dataclass(frozen=True, slots=True)
class Call:
    """`model` is the name that the client used; `ignored` are its fields that nothing here knows.

    `shown`: how many of each prompt's `sampling.n` choices the answer has, the most likely ones; None: all.
    `grammar`: what the answer must follow, yet to be compiled; `grammar_param` the field that asked for it, and
    `grammar_schemas` those that a structure was made of, by the fields that they came in.
    `new_reader`: makes what reads a choice's text. `prompt_field`: the field that the prompts came in.
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    options: RequestOptions
    output: Output
    ignored: tuple[str, ...] = ()
    shown: int | None = None
    grammar: GrammarSource | None = None
    grammar_param: str = ""
    grammar_schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    new_reader: Callable[[], ReplyReader] = PlainReader
    prompt_field: str = "prompt"

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.sampling.n
