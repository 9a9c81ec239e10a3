"""What the tokenizer is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages.values import Adapter, Constraint, Pooling, RequestId
from asyncpage.records import record


@record(frozen=True, slots=True)
class TextPrompt:
    """Raw text; control tokens in it are parsed. `add_special`: put around it what the model wants there."""

    text: str
    add_special: bool = True


@record(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, int32 little-endian."""

    tokens: bytes


@record(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template; text of control tokens inside it stays plain text.

    `messages` are mappings with `role` and `content` (a string, text parts already joined) and whatever else the
    template reads; `kwargs` are further template variables. `add_special`: put around the rendered text what the model
    wants around raw text, which most templates have written already.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_special: bool = False


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@record(frozen=True, slots=True)
class RequestOptions:
    """What a request asks of the engine, beside sampling.

    `priority`: smaller runs earlier. `deadline`: on the engine's clock, None for never. `cache_salt` separates
    tenants in the prefix cache; `use_cache` False neither reads nor feeds it. `echo` puts the prompt's text in
    front of the answer. `truncate_prompt_tokens` keeps that many tokens from the prompt's end. `label` is the
    client-visible id, for logs. `constraint`: what every token of the answer must follow. `pooling`: the answer is not
    text but one vector of the whole prompt, of which truncation keeps the beginning then; it goes with `max_tokens` 0.
    `lora`: the adapter that the model runs with.
    """

    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    use_cache: bool = True
    echo: bool = False
    truncate_prompt_tokens: int | None = None
    label: str = ""
    constraint: Constraint | None = None
    pooling: Pooling | None = None
    lora: Adapter | None = None

    @property
    def adapter(self) -> str:
        """Which adapter's KV the request computes, "" for the model's own."""
        return "" if self.lora is None else self.lora.identity


@record(frozen=True, slots=True)
class Tokenize:
    """A validated prompt wants to run: render, encode, hash, then `Admit`.

    `request` is the first of `sampling.n` consecutive ids, one a choice.
    """

    request: RequestId
    prompt: Prompt
    sampling: SamplingParams
    options: RequestOptions


@record(frozen=True, slots=True)
class Encode:
    """A validated prompt is wanted as token ids and not to run: answered with `Encoded`, or with `Refused`."""

    request: RequestId
    prompt: Prompt


@record(frozen=True, slots=True)
class Cancel:
    """The client has left. Goes by the tokenizer, so that it can never overtake its own `Admit`."""

    request: RequestId
