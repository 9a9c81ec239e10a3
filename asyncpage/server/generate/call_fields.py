"""The fields that chat and text completions share: model, sampling, engine options, streaming.

The body readers of `openai` and the other rooms call these; values that the request leaves out come from the engine's
defaults for the model.

INVARIANT: whatever these return has passed `SamplingParams.check` against the model's vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncpage.core.sampling import MAX_BAD_WORDS, MAX_CHOICES, MAX_LOGIT_BIAS, MAX_STOP_STRINGS, SamplingParams
from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt, Pooling, RequestOptions
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, to_number
from asyncpage.server.generate.renaming import renamed
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.tools.parser import ToolParser

MAX_TIMEOUT_S = 7 * 24 * 3600.0
MAX_SALT = 256
MAX_STOP_TOKEN_IDS = 256
_PRIORITY = 2**31 - 1

_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What validation needs to know of the server: the model's facts, its defaults, and the operator's limits.

    `now`: the engine's clock at arrival; deadlines count from it. `pooling`: how prompts become vectors of
    `hidden_size` numbers, None where they do not. `max_inputs`: most prompts in a call whose answer is vectors.
    `tool_parser`: reads the model's calls of tools, None where no parser is known to. `auto_tool_choice` False: models
    may not choose to call tools. `reasoning_parser`: tells thinking from answer, None where there is none.
    `prompt_end`: what the chat template writes for the answer to begin behind.
    """

    model_names: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    has_chat_template: bool
    defaults: Mapping[str, Any]
    max_choices: int
    timeout_s: float | None
    now: float
    pooling: Pooling | None = None
    hidden_size: int = 0
    max_inputs: int = 1
    tool_parser: ToolParser | None = None
    auto_tool_choice: bool = True
    reasoning_parser: ReasoningParser | None = None
    prompt_end: Callable[[ChatPrompt], str] = lambda prompt: ""


@dataclass(frozen=True, slots=True)
class StreamFields:
    """How the answer is delivered."""

    stream: bool
    include_usage: bool
    continuous_usage: bool


def read_model(fields: Fields, setting: Setting) -> str:
    """The model asked for; the first one served when the request names none. Errors: 404 for any other."""
    name = fields.value("model")
    if name is None:
        return setting.model_names[0]
    if not isinstance(name, str):
        raise invalid(f"model must be a string, got {shown(name)}", param="model")
    if name not in setting.model_names:
        raise RequestError(
            f"the model {shown(name)} does not exist here; served: {', '.join(setting.model_names)}",
            status=404,
            code="model_not_found",
            param="model",
        )
    return name


def read_stream(fields: Fields) -> StreamFields:
    stream = fields.boolean("stream") or False
    if fields.value("stream_options") is None:
        return StreamFields(stream, include_usage=False, continuous_usage=False)
    if not stream:
        raise invalid("stream_options needs stream to be true", param="stream_options")
    options = fields.object("stream_options")
    continuous = options.boolean("continuous_usage_stats") or False
    return StreamFields(stream, options.boolean("include_usage") or False, continuous)


def read_options(
    fields: Fields, setting: Setting, *, echo: bool = False, least_answer_tokens: int = 1
) -> RequestOptions:
    """`least_answer_tokens`: what an answer takes of the context at least."""
    priority = fields.integer("priority", low=-_PRIORITY, high=_PRIORITY)
    cached = [fields.boolean(name) for name in ("use_cache", "cache_prompt")]
    return RequestOptions(
        priority=priority or 0,
        deadline=_deadline(fields, setting),
        cache_salt=fields.string("cache_salt", longest=MAX_SALT) or "",
        use_cache=False not in cached,
        echo=echo,
        truncate_prompt_tokens=_truncation(fields, setting.max_model_len, least_answer_tokens),
    )


def read_sampling(
    fields: Fields,
    setting: Setting,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    stop_name: str = "stop",
) -> SamplingParams:
    """Every sampling field except the few whose meaning differs between the endpoints, which are given.

    `stop_name`: what this API calls the field of stop strings. Errors: 400 whose `param` is the field.
    """
    asked: dict[str, Any] = {
        "n": fields.integer("n", low=1, high=min(MAX_CHOICES, setting.max_choices)),
        "max_tokens": max_tokens,
        "min_tokens": fields.integer("min_tokens"),
        "seed": fields.integer("seed"),
        "top_k": _top_k(fields),
        "stop": fields.strings(stop_name, most=MAX_STOP_STRINGS),
        "stop_token_ids": fields.integers("stop_token_ids", most=MAX_STOP_TOKEN_IDS),
        "bad_words": fields.strings("bad_words", most=MAX_BAD_WORDS),
        "allowed_token_ids": fields.integers("allowed_token_ids", most=setting.vocab_size),
        "logit_bias": _logit_bias(fields),
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ):
        asked[name] = fields.number(name)
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
        asked[name] = fields.boolean(name)
    given = {name: value for name, value in asked.items() if value is not None}
    sampling = SamplingParams(**{**setting.defaults, **given})
    with renamed((("stop", stop_name),)):
        sampling.check(setting.vocab_size)
    return sampling


def check_choices(prompts: int, n: int, setting: Setting) -> None:
    """Errors: 400 when a call has more choices than one request may ask for."""
    if prompts * n > setting.max_choices:
        raise invalid(
            f"a request may have at most {setting.max_choices} choices (--max-prompts, or --max-queue and "
            f"--max-num-seqs together), got {prompts} prompts x n {n}",
            param="prompt" if prompts > 1 else "n",
        )


def _deadline(fields: Fields, setting: Setting) -> float | None:
    timeout_s = fields.number("timeout")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise invalid(
            f"timeout must be greater than 0 and at most {MAX_TIMEOUT_S:.0f} seconds, got {shown(timeout_s)}",
            param="timeout",
        )
    if timeout_s is None:
        timeout_s = setting.timeout_s
    return None if timeout_s is None else setting.now + timeout_s


def _truncation(fields: Fields, max_model_len: int, least_answer_tokens: int) -> int | None:
    keep = fields.integer("truncate_prompt_tokens", low=-1, high=max_model_len)
    if keep == 0:
        raise invalid("truncate_prompt_tokens must be at least 1, or -1, got 0", param="truncate_prompt_tokens")
    # -1 is what other servers call "as much as the model takes".
    return max(1, max_model_len - least_answer_tokens) if keep == -1 else keep


def _top_k(fields: Fields) -> int | None:
    top_k = fields.integer("top_k")
    return 0 if top_k == -1 else top_k  # -1 is what other servers call "all tokens"


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...] | None:
    table = fields.mapping("logit_bias")
    if table is None:
        return None
    if len(table) > MAX_LOGIT_BIAS:
        raise invalid(f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens, got {len(table)}", param="logit_bias")
    for name in table:
        if not _TOKEN_ID.fullmatch(name):
            raise invalid(f"logit_bias keys must be token ids, got {shown(name)}", param="logit_bias")
    return tuple((int(name), to_number(value, "logit_bias")) for name, value in table.items())
