"""The body of `POST /v1/completions`: prompts and fields to a validated `Call`.

The completion route calls `read_completion`; what it returns goes to the generate route.

INVARIANT: token prompts in a call hold only ids of the model's vocabulary, and no prompt is empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asyncpage.core.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS, SamplingParams
from asyncpage.messages import Prompt, TextPrompt, TokenPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, wrong_type
from asyncpage.server.generate.call_fields import (
    Setting,
    check_choices,
    read_model,
    read_options,
    read_sampling,
    read_stream,
)
from asyncpage.server.generate.structured_fields import read_structured
from asyncpage.server.generate.token_ids import read_token_ids
from asyncpage.server.generate.unsupported import refuse_tools, refuse_unsupported, unsupported
from asyncpage.server.json_body import JsonBody, check_values

DEFAULT_MAX_TOKENS = 16  # the OpenAI API's default on this route


def read_completion(body: JsonBody, setting: Setting) -> Call:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    model = read_model(fields, setting)
    refuse_unsupported(fields)
    refuse_tools(fields)
    if fields.value("suffix") not in (None, ""):
        raise unsupported("suffix", "text after the completion")
    stream = read_stream(fields)
    echo = fields.boolean("echo") or False
    logprobs = fields.integer("logprobs", low=0, high=MAX_TOP_LOGPROBS)
    prompt_logprobs = fields.integer("prompt_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if prompt_logprobs is not None and stream.stream:
        raise invalid("prompt_logprobs needs stream to be false", param="prompt_logprobs")
    best_of = _read_best_of(fields, stream.stream)
    # An echoed prompt shows its own entries in `logprobs`, so the engine has to make them.
    wanted = [k for k in (prompt_logprobs, logprobs if echo else None) if k is not None]
    sampling = read_sampling(
        fields,
        setting,
        max_tokens=_read_max_tokens(fields, setting),
        logprobs=0 if logprobs is None and best_of is not None else logprobs,  # by which the best are known
        prompt_logprobs=max(wanted) if wanted else None,
    )
    shown = sampling.n
    if best_of is not None:
        sampling = _draw(sampling, best_of, setting)
    options = read_options(fields, setting, echo=echo, least_answer_tokens=0 if sampling.max_tokens == 0 else 1)
    raw = fields.required("prompt")
    is_many = isinstance(raw, list) and bool(raw) and isinstance(raw[0], (str, list))
    check_choices(len(raw) if is_many else 1, sampling.n, setting)
    room = setting.max_model_len if options.truncate_prompt_tokens is None else None
    add_special = fields.boolean("add_special_tokens") is not False
    prompts = (
        tuple(_read_prompt(item, f"prompt.{index}", setting, room, add_special) for index, item in enumerate(raw))
        if is_many
        else (_read_prompt(raw, "prompt", setting, room, add_special),)
    )
    if len({type(prompt) for prompt in prompts}) > 1:
        raise invalid("prompt must hold only strings or only lists of token ids, not both", param="prompt")
    grammar, grammar_param = read_structured(fields) or (None, "")
    call = Call(
        model=model,
        prompts=prompts,
        sampling=sampling,
        options=options,
        output=Output(
            stream=stream.stream,
            include_usage=stream.include_usage,
            continuous_usage=stream.continuous_usage,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            echo=echo,
            return_token_ids=fields.boolean("return_token_ids") or False,
        ),
        ignored=tuple(fields.unread()),
        grammar=grammar,
        grammar_param=grammar_param,
        shown=shown if shown < sampling.n else None,
    )
    check_values(body)
    return call


def _read_max_tokens(fields: Fields, setting: Setting) -> int | None:
    max_tokens = fields.integer("max_tokens", low=0, high=2**31 - 1)
    if max_tokens is not None or setting.defaults.get("max_tokens") is not None:
        return max_tokens
    return max(DEFAULT_MAX_TOKENS, fields.integer("min_tokens") or 0)


def _read_best_of(fields: Fields, stream: bool) -> int | None:
    """How many choices are to be drawn for a prompt, None when as many as are shown."""
    best_of, n = fields.integer("best_of", low=1), fields.integer("n", low=1)
    if best_of is None or best_of == (n or 1):
        return None
    if best_of < (n or 1):
        raise invalid(f"best_of ({best_of}) must be at least n ({n})", param="best_of")
    if stream:
        raise invalid(f"best_of ({best_of}) above n ({n or 1}) needs stream to be false", param="best_of")
    return best_of


def _draw(sampling: SamplingParams, best_of: int, setting: Setting) -> SamplingParams:
    most = min(MAX_CHOICES, setting.max_choices)
    if best_of > most:
        raise invalid(f"best_of may be at most {most}, got {best_of}", param="best_of")
    return replace(sampling, n=best_of)


def _read_prompt(raw: Any, path: str, setting: Setting, room: int | None, add_special: bool) -> Prompt:
    """`room`: the most tokens a prompt may have, None when the engine will cut it anyway."""
    match raw:
        case str():
            if not raw:
                raise invalid(f"{path} must not be empty", param="prompt")
            return TextPrompt(raw, add_special)
        case list():
            if not raw:
                raise invalid(f"{path} must not be empty", param="prompt")
            if room is not None and len(raw) > room:
                raise invalid(
                    f"{path} has {len(raw)} tokens; this model's context is {room} tokens, prompt and answer together",
                    param="prompt",
                    code="context_length_exceeded",
                )
            return TokenPrompt(read_token_ids(raw, path, setting.vocab_size))
        case _:
            raise wrong_type("prompt", "a string, a list of strings, token ids, or a list of lists of them", raw)
