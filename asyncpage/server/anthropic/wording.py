"""The words of the Messages API: an answer is a message of content blocks, told block by block.

The consumers of a reply call it, one for each call.

INVARIANT: blocks are numbered from 0 without a gap, and each is stopped before the next one starts.
"""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from asyncpage.errors import Failure, RequestError
from asyncpage.messages import Finish
from asyncpage.server.call import Call
from asyncpage.server.generate.blocks import Block, Blocks, Change
from asyncpage.server.generate.reply_writer import named_event
from asyncpage.server.generate.shape import Head
from asyncpage.server.json_body import check_structure
from asyncpage.server.message_error import message_error
from asyncpage.text.token_logprobs import TokenTable

PING = named_event("ping", {"type": "ping"})

_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageWording:
    """The words of one message."""

    def __init__(self, call: Call, head: Head, table: TokenTable) -> None:
        self._stop_sequences = call.sampling.stop
        self._head = head

    def begin(self, prompt_tokens: int) -> bytes:
        # What of the prompt was cached is known when it has run; the end tells it.
        message = self._message([], None, None, _usage(prompt_tokens, 0, 0))
        return named_event("message_start", {"type": "message_start", "message": message})

    def tell(self, change: Change) -> bytes:
        block = change.block
        match change.kind:
            case "grew":
                kind, name = _DELTAS[block.kind]
                return (
                    'event: content_block_delta\ndata: {"type":"content_block_delta","index":'
                    f'{block.number},"delta":{{"type":"{kind}","{name}":{quote(change.text)}}}}}\n\n'
                ).encode("ascii")
            case "opened":
                started = {"type": "content_block_start", "index": block.number, "content_block": _content(block, "")}
                return named_event("content_block_start", started)
            case "closed":
                stopped = {"type": "content_block_stop", "index": block.number}
                return named_event("content_block_stop", stopped)

    def end(self, blocks: Blocks, finish: Finish) -> bytes:
        reason, sequence = self._stop(blocks, finish)
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(finish.prompt_tokens, finish.cached_tokens, finish.completion_tokens),
        }
        return named_event("message_delta", delta) + named_event("message_stop", {"type": "message_stop"})

    def fail(self, blocks: Blocks, failure: Failure) -> bytes:
        return named_event("error", message_error(failure))

    def answer(self, blocks: Blocks, finish: Finish) -> dict[str, Any]:
        reason, sequence = self._stop(blocks, finish)
        usage = _usage(finish.prompt_tokens, finish.cached_tokens, finish.completion_tokens)
        return self._message([_content(block, block.text) for block in blocks.blocks], reason, sequence, usage)

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _stop(self, blocks: Blocks, finish: Finish) -> tuple[str, str | None]:
        """Why the message ends, and the stop sequence that ended it."""
        if finish.reason == "length":
            return "max_tokens", None
        if isinstance(finish.stop_reason, str) and finish.stop_reason in self._stop_sequences:
            return "stop_sequence", finish.stop_reason
        return "tool_use" if any(block.kind == "call" for block in blocks.blocks) else "end_turn", None


def _content(block: Block, text: str) -> dict[str, Any]:
    """A content block that holds this text."""
    match block.kind:
        case "text":
            return {"type": "text", "text": text}
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "call":
            return {"type": "tool_use", "id": f"toolu_{block.mark}", "name": block.name, "input": _input(text)}


def _input(text: str) -> dict[str, Any]:
    """What a client would make of a call's arguments; empty where they are no object, such as one that was cut off.

    What is stranger than a request may be is kept, as far as it can be written as JSON again: it is the answer.
    """
    try:
        check_structure(text.encode("utf-8", "replace"), "the input")
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (RequestError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that JSON can hold")
    return number


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Cached tokens are not among the input's here."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": completion_tokens,
    }
