"""The bodies of `POST /tokenize` and `POST /detokenize`.

The token routes call `read_tokenize` and `read_detokenize`.

INVARIANT: a prompt that is read here is read as the routes that generate read it, so its ids are those that they use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncpage.messages import Prompt, TextPrompt
from asyncpage.server.failure import invalid
from asyncpage.server.fields import Fields, wrong_type
from asyncpage.server.generate.call_fields import Setting, read_model
from asyncpage.server.generate.reply_plan import plan_reply
from asyncpage.server.generate.token_ids import read_token_ids
from asyncpage.server.generate.tool_fields import read_tools
from asyncpage.server.json_body import JsonBody, check_values
from asyncpage.server.openai.chat_body import read_messages

MAX_DETOKENIZE = 1 << 17
"""Ids that one request may have turned into text: the longest contexts, and 10 ms of work."""


@dataclass(frozen=True, slots=True)
class TokenizeCall:
    """`with_texts`: show each token's text too. `ignored` are the fields that nothing here knows."""

    prompt: Prompt
    with_texts: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DetokenizeCall:
    """`tokens`: int32, little-endian."""

    tokens: bytes
    ignored: tuple[str, ...]


def read_tokenize(body: JsonBody, setting: Setting) -> TokenizeCall:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    read_model(fields, setting)
    with_texts = fields.boolean("return_token_strs") or False
    is_text = fields.value("prompt") is not None
    if is_text == (fields.value("messages") is not None):
        raise invalid("send either prompt, a string, or messages", param="prompt")
    prompt: Prompt
    if is_text:
        text = fields.required("prompt")
        if not isinstance(text, str):
            raise wrong_type("prompt", "a string", text)
        prompt = TextPrompt(text, add_special=fields.boolean("add_special_tokens") is not False)
    else:
        plan = plan_reply(read_tools(fields), setting)
        prompt = replace(read_messages(fields, setting), tools=plan.template_tools)
    call = TokenizeCall(prompt, with_texts, tuple(fields.unread()))
    check_values(body)
    return call


def read_detokenize(body: JsonBody, setting: Setting) -> DetokenizeCall:
    """Errors: `RequestError` 400 naming the field, 404 for an unknown model."""
    fields = Fields(body.fields)
    read_model(fields, setting)
    raw = fields.required("tokens")
    if not isinstance(raw, list):
        raise wrong_type("tokens", "a list of token ids", raw)
    if len(raw) > MAX_DETOKENIZE:
        raise invalid(f"tokens takes at most {MAX_DETOKENIZE} ids, got {len(raw)}", param="tokens")
    call = DetokenizeCall(read_token_ids(raw, "tokens", setting.vocab_size), tuple(fields.unread()))
    check_values(body)
    return call
