"""The body of `POST /v1/embeddings`: inputs and fields to a validated `Call` whose choices are vectors.

The embeddings route calls `read_embedding`; what it returns is run like every other call.

INVARIANT: each input is one prompt, none is empty, and the engine is asked to pool every one in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asyncpage.core.pooling import POOLED, no_embeddings
from asyncpage.messages import Pooling, Prompt, TextPrompt, TokenPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, shown, wrong_type
from asyncpage.server.generate.call_fields import Setting, read_model, read_options
from asyncpage.server.generate.token_ids import read_token_ids
from asyncpage.server.generate.unsupported import unsupported
from asyncpage.server.json_body import JsonBody, check_values

MAX_INPUTS = 2048  # the OpenAI API's own limit; clients that embed whole documents send a thousand at once
ENCODINGS = ("float", "base64")
MAX_USER = 512


def read_embedding(body: JsonBody, setting: Setting) -> Call:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    model = read_model(fields, setting)
    if setting.pooling is None:
        raise no_embeddings()
    encoding = fields.value("encoding_format")
    if encoding not in (None, *ENCODINGS):
        raise invalid(
            f"encoding_format must be one of {', '.join(ENCODINGS)}, got {shown(encoding)}", param="encoding_format"
        )
    _check_dimensions(fields, setting)
    if fields.boolean("add_special_tokens") is False:
        raise unsupported("add_special_tokens", "leaving out the tokenizer's own special tokens")
    fields.string("user", longest=MAX_USER)  # accepted, and of no use here
    options = replace(
        read_options(fields, setting, least_answer_tokens=0), pooling=_read_pooling(fields, setting.pooling)
    )
    room = setting.max_model_len if options.truncate_prompt_tokens is None else None
    call = Call(
        model=model,
        prompts=_read_inputs(fields, setting, room),
        sampling=POOLED,
        options=options,
        output=Output(encoding_format=encoding or "float"),
        prompt_field="input",
        ignored=tuple(fields.unread()),
    )
    check_values(body)
    return call


def _check_dimensions(fields: Fields, setting: Setting) -> None:
    """A vector can be cut only where the model was trained for it, which no model file says."""
    dimensions = fields.integer("dimensions", low=1)
    if dimensions is not None and dimensions != setting.hidden_size:
        raise unsupported("dimensions", f"other vectors than the model's own of {setting.hidden_size} numbers")


def _read_pooling(fields: Fields, served: Pooling) -> Pooling:
    normalize = fields.boolean("normalize")
    return served if normalize is None else replace(served, is_normalized=normalize)


def _read_inputs(fields: Fields, setting: Setting, room: int | None) -> tuple[Prompt, ...]:
    """`room`: the most tokens an input may have, None when the engine will cut it anyway."""
    raw = fields.required("input")
    if not (isinstance(raw, list) and raw and isinstance(raw[0], (str, list))):
        return (_read_input(raw, "input", setting, room),)
    most = min(MAX_INPUTS, setting.max_inputs)
    if len(raw) > most:
        raise invalid(
            f"input may hold at most {most} texts or lists of token ids, got {len(raw)}; send them in several requests",
            param="input",
        )
    inputs = tuple(_read_input(item, f"input.{index}", setting, room) for index, item in enumerate(raw))
    if len({type(prompt) for prompt in inputs}) > 1:
        raise invalid("input must hold only strings or only lists of token ids, not both", param="input")
    return inputs


def _read_input(raw: Any, path: str, setting: Setting, room: int | None) -> Prompt:
    if not isinstance(raw, (str, list)):
        raise wrong_type("input", "a string, a list of strings, token ids, or a list of lists of them", raw)
    if not raw:
        raise invalid(f"{path} must not be empty", param="input")
    if isinstance(raw, str):
        return TextPrompt(raw)
    if room is not None and len(raw) > room:
        raise invalid(
            f"{path} has {len(raw)} tokens; this model takes {room} at most",
            param="input",
            code="context_length_exceeded",
        )
    return TokenPrompt(read_token_ids(raw, path, setting.vocab_size))
