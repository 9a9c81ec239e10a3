"""The words of the Responses API: an answer is a response object, whose output items are told by numbered events.

The consumers of a reply call it, one for each call.

INVARIANT: events are numbered from 0 without a gap, and every item that was added is done before the response is
completed or incomplete.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote
from typing import Any

from asyncpage.errors import Failure
from asyncpage.messages import Finish
from asyncpage.server.call import Call
from asyncpage.server.failure import error_body
from asyncpage.server.generate.blocks import Block, Blocks, Change
from asyncpage.server.generate.logprob_shape import chat_logprobs
from asyncpage.server.generate.reply_writer import named_event
from asyncpage.server.generate.shape import Head
from asyncpage.text.token_logprobs import TokenTable

_ID_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}
_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "call": "response.function_call_arguments.delta",
}


class ResponseWording:
    """The words of one response."""

    def __init__(self, call: Call, head: Head, table: TokenTable) -> None:
        self._call = call
        self._head = head
        self._table = table
        self._next = 0  # of the events
        self._splice = ("", "")  # a delta of the open block, before its text and behind it

    # --- events ------------------------------------------------------------------------------------------------------

    def begin(self, prompt_tokens: int) -> bytes:
        response = self._response("in_progress", [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def tell(self, change: Change) -> bytes:
        match change.kind:
            case "grew":
                return self._delta(change)
            case "opened":
                return self._opened(change.block)
            case "closed":
                return self._closed(change.block)

    def end(self, blocks: Blocks, finish: Finish) -> bytes:
        told = b""
        if not blocks.blocks:
            silence = _silence(blocks, finish)
            told = self._opened(silence) + self._closed(silence)
        response = self._finished(blocks, finish)
        return told + self._event(f"response.{response['status']}", response=response)

    def fail(self, blocks: Blocks, failure: Failure) -> bytes:
        error = error_body(failure)["error"]
        code = "rate_limit_exceeded" if failure.status == 429 else "server_error"
        response = self._response("failed", self._items(blocks), error={"code": code, "message": failure.message})
        # The error stands in both places where clients look for it: among the fields, and as an object of its own.
        told = self._event("error", code=error["code"], message=error["message"], param=error["param"], error=error)
        return told + self._event("response.failed", response=response)

    # --- the whole answer --------------------------------------------------------------------------------------------

    def answer(self, blocks: Blocks, finish: Finish) -> dict[str, Any]:
        if not blocks.blocks:
            _silence(blocks, finish)
        return self._finished(blocks, finish)

    def _finished(self, blocks: Blocks, finish: Finish) -> dict[str, Any]:
        is_cut = finish.reason == "length"
        usage = {
            "input_tokens": finish.prompt_tokens,
            "input_tokens_details": {"cached_tokens": finish.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": finish.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": blocks.reasoning_tokens},
            "total_tokens": finish.prompt_tokens + finish.completion_tokens,
        }
        return self._response(
            "incomplete" if is_cut else "completed",
            self._items(blocks),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage=usage,
        )

    def _response(
        self,
        status: str,
        items: list[dict[str, Any]],
        *,
        error: dict[str, Any] | None = None,
        incomplete_details: dict[str, Any] | None = None,
        usage: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": status,
            "error": error,
            "incomplete_details": incomplete_details,
            "model": head.model,
            "output": items,
            **self._call.output.repeated,
            "usage": usage,
        }

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _opened(self, block: Block) -> bytes:
        where: dict[str, Any] = {"item_id": _id(block), "output_index": block.number}
        if block.kind != "call":
            where["content_index"] = 0
        told = self._event(
            "response.output_item.added",
            output_index=block.number,
            item=self._item(block, "in_progress", is_empty=True),
        )
        if block.kind != "call":
            told += self._event("response.content_part.added", **where, part=self._part(block, is_empty=True))
        kind = _DELTAS[block.kind]
        rest = "".join(
            f'"{name}":{value if isinstance(value, int) else quote(value)},' for name, value in where.items()
        )
        self._splice = (
            f'event: {kind}\ndata: {{"type":"{kind}",{rest}"delta":',
            ',"logprobs":[],"sequence_number":' if block.kind == "text" else ',"sequence_number":',
        )
        return told

    def _delta(self, change: Change) -> bytes:
        if change.entries:
            return self._event(
                _DELTAS["text"],
                item_id=_id(change.block),
                output_index=change.block.number,
                content_index=0,
                delta=change.text,
                logprobs=self._logprobs(change.entries),
            )
        before, behind = self._splice
        number, self._next = self._next, self._next + 1
        return f"{before}{quote(change.text)}{behind}{number}}}\n\n".encode("ascii")

    def _closed(self, block: Block) -> bytes:
        where: dict[str, Any] = {"item_id": _id(block), "output_index": block.number}
        match block.kind:
            case "call":
                kind = "response.function_call_arguments.done"
                told = self._event(kind, **where, name=block.name, arguments=block.text)
            case kind:
                where["content_index"] = 0
                if kind == "text":
                    told = self._event("response.output_text.done", **where, text=block.text, logprobs=[])
                else:
                    told = self._event("response.reasoning_text.done", **where, text=block.text)
                told += self._event("response.content_part.done", **where, part=self._part(block))
        item = self._item(block, _status(block))
        return told + self._event("response.output_item.done", output_index=block.number, item=item)

    def _items(self, blocks: Blocks) -> list[dict[str, Any]]:
        return [self._item(block, _status(block)) for block in blocks.blocks]

    def _item(self, block: Block, status: str, *, is_empty: bool = False) -> dict[str, Any]:
        """`is_empty`: without what it holds, as an item is when it is added."""
        item: dict[str, Any] = {"id": _id(block), "status": status}
        content = [] if is_empty else [self._part(block)]
        match block.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "reasoning":
                return {**item, "type": "reasoning", "summary": [], "content": content, "encrypted_content": None}
            case "call":
                return {
                    **item,
                    "type": "function_call",
                    "call_id": f"call_{block.mark}",
                    "name": block.name,
                    "arguments": "" if is_empty else block.text,
                }

    def _part(self, block: Block, *, is_empty: bool = False) -> dict[str, Any]:
        text = "" if is_empty else block.text
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs(block.entries)}

    def _logprobs(self, entries: Any) -> list[dict[str, Any]]:
        most = self._call.output.logprobs
        return [] if most is None else chat_logprobs(entries, most, self._table)["content"]

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._next = self._next, self._next + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})


def _silence(blocks: Blocks, finish: Finish) -> Block:
    """The message that an answer without a word still has."""
    block = Block(0, "text", is_closed=True, is_cut=finish.reason == "length")
    blocks.blocks.append(block)
    return block


def _id(block: Block) -> str:
    return _ID_PREFIXES[block.kind] + block.mark


def _status(block: Block) -> str:
    return "completed" if block.is_closed and not block.is_cut else "incomplete"
