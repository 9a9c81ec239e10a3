"""What a request may ask of the sampler, checked before it is queued.

Names and defaults are those of the OpenAI API and, for what it lacks, of vLLM's extensions.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from asyncpage.errors import RequestError
from asyncpage.records import record

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 1024  # per string: bounds what the detokenizer may have to hold back
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256


@record(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a request ends.

    `max_tokens` None means up to the context limit. `temperature` 0 is greedy. `top_k` 0 means all tokens.
    `logprobs` None means none, k means the chosen token and the k most likely ones at each position;
    `prompt_logprobs` asks the same for the prompt. `seed` None draws a seed when the request is admitted.
    Raises `RequestError` from `check`, never from construction, so that a value can be built and then judged.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def check_constrained(self, eos_ids: tuple[int, ...] | None = None) -> None:
        """Refuse what cannot go with a grammar, whose complete texts end with an end token.

        `eos_ids`: the model's, None where they are not known. Errors: `RequestError` (400) whose `param` is the field's
        name.
        """
        if self.ignore_eos:
            text = "ignore_eos cannot go with structured output: a complete answer ends with an end token"
            raise RequestError(text, param="ignore_eos", code="unsupported")
        if eos_ids == () and not self.stop_token_ids:
            text = "structured output ends with an end token, and this model names none: give stop_token_ids"
            raise RequestError(text, param="stop_token_ids")

    def check(self, vocab_size: int | None = None) -> None:
        """Refuse what cannot be done, naming the field.

        Errors: `RequestError` (400) whose `param` is the field's name. `vocab_size` None skips the checks of
        token ids against the vocabulary.
        """
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or not low <= value <= high:
                raise RequestError(f"{name} must be between {low} and {high}, got {value}", param=name)
        if self.top_p == 0.0:
            raise RequestError("top_p must be greater than 0 and at most 1, got 0", param="top_p")
        if self.repetition_penalty == 0.0:
            raise RequestError("repetition_penalty must be greater than 0, got 0", param="repetition_penalty")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )
        self._check_strings("stop", self.stop, MAX_STOP_STRINGS)
        self._check_strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError(
                f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens, got {len(self.logit_bias)}", param="logit_bias"
            )
        for token, bias in self.logit_bias:
            if not math.isfinite(bias) or not -100 <= bias <= 100:
                raise RequestError(
                    f"logit_bias must be between -100 and 100, got {bias} for token {token}", param="logit_bias"
                )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must name at least one token", param="allowed_token_ids")
        if vocab_size is not None:
            for name, ids in (
                ("stop_token_ids", self.stop_token_ids),
                ("allowed_token_ids", self.allowed_token_ids or ()),
                ("logit_bias", tuple(token for token, _ in self.logit_bias)),
            ):
                for token in ids:
                    if not 0 <= token < vocab_size:
                        raise RequestError(
                            f"{name}: token id {token} is outside the vocabulary of {vocab_size}", param=name
                        )

    def _check_strings(self, name: str, strings: tuple[str, ...], most: int) -> None:
        if len(strings) > most:
            raise RequestError(f"{name} takes at most {most} strings, got {len(strings)}", param=name)
        for string in strings:
            if not string:
                raise RequestError(f"{name} must not contain an empty string", param=name)
            if len(string.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
                raise RequestError(f"{name} strings are limited to {MAX_STOP_BYTES} bytes each", param=name)

    def to_wire(self) -> dict[str, Any]:
        """Only what differs from the defaults, as plain values."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


_INT_MAX = 2**31 - 1
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("n", 1, MAX_CHOICES),
    ("max_tokens", 0, _INT_MAX),
    ("min_tokens", 0, _INT_MAX),
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("top_k", 0, _INT_MAX),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.0, 100.0),
    ("seed", -(2**63), 2**63 - 1),
    ("logprobs", 0, MAX_TOP_LOGPROBS),
    ("prompt_logprobs", 0, MAX_TOP_LOGPROBS),
)
