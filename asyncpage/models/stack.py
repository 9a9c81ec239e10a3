"""A decoder's layers as lists of operators for native code, made of the same parts that compute one by one.

The loader makes one of a decoder whose weights are on the grids of their file, and the runner calls it in the decoder's
place. A part that there is no operator for is called where it stands, between two lists: a family needs no native
code of its own.

INVARIANT: it computes what the decoder's parts do, in the same order; last bits of norms, turns and gates may differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncpage.kernels.loaded import Library, current_library
from asyncpage.kernels.quantised import kind_number
from asyncpage.kernels.stack import AttentionCalls, Instruction, NativeStack, Operation
from asyncpage.models.attention import AttentionPart, SelfAttention
from asyncpage.models.decoder import Decoder, DecoderLayer
from asyncpage.models.gate import native_kind
from asyncpage.models.layers import GatedFeedForward, HeadNorm, RmsNorm, RowMap, WideRmsNorm
from asyncpage.models.model import Attend, Model
from asyncpage.models.quantised_linear import QuantisedLinear, SideBySide
from asyncpage.models.rope import Angles, Rope

CallsOf = Callable[[int], AttentionCalls | None]
"""calls_of(layer) -> its attention as functions, None where its backend has none."""

_STREAM, _NORMED, _WIDE, _NARROW, _LAST = range(5)
"""Buffers: the residual stream, what norms make of it, outputs of wide products, what goes into the next, the end."""

_FIRST_POSITIONS = 1024

_Call = Callable[["_Step"], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What a part that is called where it stands may need. `rows(buffer, width)`: the step's rows in a buffer."""

    rows: Callable[[int, int], Tensor]
    angles: Sequence[Angles]
    attend: Attend


def stacked(model: Model, calls_of: CallsOf) -> Model:
    """The same model, run by lists where this process has native code and some of its parts have operators."""
    if not isinstance(model, Decoder) or len(parts_called(model)) == 2 * len(model.layers):
        return model
    library = current_library()
    return model if isinstance(library, str) else Stack(model, library, calls_of)


class Stack:
    """See `model.Model`: that of `decoder`. `calls_of`: the attention of its layers."""

    def __init__(self, decoder: Decoder, library: Library, calls_of: CallsOf) -> None:
        self.decoder = decoder
        self.vocab_size, self.hidden_size, self.max_model_len = (
            decoder.vocab_size, decoder.hidden_size, decoder.max_model_len,
        )  # fmt: skip
        self.groups, self.layer_groups, self.layer_slots = decoder.groups, decoder.layer_groups, decoder.layer_slots
        self.layer_params = decoder.layer_params
        self.specs, self.embed, self.logits = decoder.specs, decoder.embed, decoder.logits
        build = _Builder(calls_of)
        for layer in decoder.layers:
            build.layer(layer, decoder.hidden_size, decoder.ropes)
        build.norm(decoder.norm, _STREAM, _LAST, decoder.hidden_size)
        self._pieces = [*build.pieces()]
        self._held = build.held
        self._native = NativeStack(library, len(build.widths), len(decoder.ropes))
        self._widths = build.widths
        self._buffers: list[Tensor] = []
        self._positions = 0
        self._angles: list[list[Tensor]] = [[] for _ in decoder.ropes]

    @property
    def native_calls(self) -> int:
        """Lists that a step runs."""
        return len(self._pieces) - self.other_calls

    @property
    def other_calls(self) -> int:
        """Parts that a step calls between them."""
        return sum(callable(piece) for piece in self._pieces)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm, by lists."""
        rows, native = len(tokens_T), self._native
        stream_TE, last_TE = self.embed(tokens_T), torch.empty(len(tokens_T), self._widths[_LAST])
        self._make_room(rows)
        memory = [stream_TE, *self._buffers, last_TE]
        for buffer, tensor in zip(native.buffers, memory, strict=True):
            buffer.at, buffer.stride = tensor.data_ptr(), tensor.stride(0)
        self._turn_to(int(positions_T.numpy().max()) + 1)
        step = None
        for piece in self._pieces:
            if not callable(piece):
                native.run(piece, rows, positions_T.data_ptr())
                continue
            if step is None:
                angles = [rope.angles(positions_T, torch.float32) for rope in self.decoder.ropes]
                step = _Step(lambda buffer, width: memory[buffer][:rows, :width], angles, attend)
            piece(step)
        return last_TE

    def _turn_to(self, end: int) -> None:
        """Have the angles of all positions before `end`; what is there stays as it is."""
        if end <= self._positions:
            return
        most = min(max(2 * self._positions, _FIRST_POSITIONS), self.max_model_len)
        more = torch.arange(self._positions, max(end, most))
        for number, rope in enumerate(self.decoder.ropes):
            found = [part[:, 0].contiguous() for part in rope.angles(more, torch.float32)]
            if self._angles[number]:
                found = [torch.cat(parts) for parts in zip(self._angles[number], found, strict=True)]
            self._angles[number] = found
            place, (cosines, sines) = self._native.angles[number], found
            place.cosines, place.sines = cosines.data_ptr(), sines.data_ptr()
        self._positions += len(more)

    def _make_room(self, rows: int) -> None:
        if not self._buffers or len(self._buffers[0]) < rows:
            room = 1 << (rows - 1).bit_length()
            self._buffers = [torch.empty(room, width) for width in self._widths[_NORMED:_LAST]]


@dataclass(slots=True, eq=False)
class _Builder:
    """Collects operators. `widths`: what each buffer must hold; `held`: what addresses are of."""

    calls_of: CallsOf
    widths: list[int] = field(default_factory=lambda: [0] * (_LAST + 1))
    held: list[Any] = field(default_factory=list)
    _operators: list[Instruction | _Call] = field(default_factory=list)

    def pieces(self) -> Iterator[ctypes.Array[Instruction] | _Call]:
        """Operators that follow one another as one list, and calls between them."""
        run: list[Instruction] = []
        for one in [*self._operators, None]:
            if isinstance(one, Instruction):
                run.append(one)
                continue
            if run:
                yield (Instruction * len(run))(*run)
                run = []
            if one is not None:
                yield one

    def layer(self, layer: DecoderLayer, width: int, ropes: Sequence[Rope]) -> None:
        """One layer, added to the stream."""
        source = self.norm(layer.before_attention, _STREAM, _NORMED, width)
        attention = layer.attention
        calls = self.calls_of(attention.layer) if isinstance(attention, SelfAttention) else None
        if isinstance(attention, SelfAttention) and calls is not None and not why_attention_is_called(attention):
            self._attention(attention, calls, source, ropes)
            self._add_product(attention.output, layer.after_attention, width)
        else:
            self._call(lambda step, x_TE: attention(x_TE, step.angles, step.attend), source, width)
            self._add_normed(layer.after_attention, width)
        source = self.norm(layer.before_feed_forward, _STREAM, _NORMED, width)
        forward = layer.feed_forward
        if isinstance(forward, GatedFeedForward) and not why_feed_forward_is_called(forward):
            self.product(forward.gate_up, source, _WIDE)
            kind = native_kind(forward.activation)
            self._put(Operation.GATE, _WIDE, _NARROW, _outputs(forward.gate_up) // 2, kind=kind)
            self._add_product(forward.down, layer.after_feed_forward, width)
        else:
            self._call(lambda step, x_TE: forward(x_TE), source, width)
            self._add_normed(layer.after_feed_forward, width)

    def norm(self, norm: RowMap | None, source: int, target: int, width: int) -> int:
        """Returns where the normed rows are: without a norm where they were."""
        if norm is None:
            return source
        if isinstance(norm, RmsNorm | WideRmsNorm):
            self._put(Operation.NORM, source, target, width, weight=self._address(norm.weight), eps=norm.eps)
        else:
            self._call(lambda step, x_TE: norm(x_TE), source, width, target)
        return target

    def product(self, linear: RowMap, source: int, target: int, *, adds: bool = False) -> None:
        """A linear map whose outputs are put, or added, to a buffer's first columns."""
        at = 0
        for part in _tables(linear):
            self._put(
                Operation.PRODUCT, source, target, 0, target_at=at, kind=kind_number(part.kind), columns=part.columns,
                outputs=part.rows, adds=adds, weight=self._address(part.weight),
            )  # fmt: skip
            if part.bias is not None:
                bias = self._address(part.bias)
                self._put(Operation.BIAS, target, target, part.rows, target_at=at, weight=bias)
            at += part.rows
            self._fit(target, at)

    def _attention(self, attention: SelfAttention, calls: AttentionCalls, source: int, ropes: Sequence[Rope]) -> None:
        shape = attention.shape
        turned, dim = shape.q_heads + shape.kv_heads, shape.head_dim
        self.product(attention.qkv, source, _WIDE)
        norm = attention.qk_norm
        if isinstance(norm, HeadNorm):
            weight = self._address(norm.weight)
            self._put(Operation.HEAD_NORM, _WIDE, _WIDE, dim, heads=turned, weight=weight, eps=norm.eps)
        if attention.rope is not None:
            rope, number = ropes[attention.rope], attention.rope
            self._put(Operation.TURN, _WIDE, _WIDE, rope.dim, heads=turned, outputs=dim, kind=number)
        self.held.append(calls)
        self._put(
            Operation.ATTEND, _WIDE, _NARROW, shape.q_heads * shape.v_head_dim, k_at=shape.q_heads * dim,
            v_at=turned * dim, write=calls.write, attend=calls.attend, group=calls.group, step=calls.step,
            layer=calls.layer,
        )  # fmt: skip

    def _add_product(self, linear: RowMap, after: RowMap | None, width: int) -> None:
        """What a part ends with, from the narrow buffer to the stream."""
        if after is None:
            self.product(linear, _NARROW, _STREAM, adds=True)
            return
        self.product(linear, _NARROW, _NORMED)
        self._add_normed(after, width)

    def _add_normed(self, after: RowMap | None, width: int) -> None:
        self.norm(after, _NORMED, _NORMED, width)
        self._put(Operation.ADD, _NORMED, _STREAM, width)

    def _call(self, part: Callable[[_Step, Tensor], Tensor], source: int, width: int, target: int = _NORMED) -> None:
        """A part that is called where it stands."""

        def work(step: _Step) -> None:
            step.rows(target, width).copy_(part(step, step.rows(source, width)))

        self._fit(target, width)
        self._operators.append(work)

    def _put(self, operation: Operation, source: int, target: int, width: int, **fields: Any) -> None:
        self._operators.append(Instruction(operation=operation, source=source, target=target, width=width, **fields))
        self._fit(target, width)

    def _fit(self, buffer: int, width: int) -> None:
        self.widths[buffer] = max(self.widths[buffer], width)

    def _address(self, tensor: Tensor) -> int:
        """Of numbers that are there as long as the list is."""
        if tensor.dtype != torch.uint8:
            tensor = tensor.float().contiguous()
        self.held.append(tensor)
        return tensor.data_ptr()


def parts_called(decoder: Decoder) -> dict[str, str]:
    """What a `Stack` calls between its lists, by its place in the model, and why: a backend without functions apart."""
    found = {}
    for number, layer in enumerate(decoder.layers):
        found[f"layers.{number}.attention"] = why_attention_is_called(layer.attention)
        found[f"layers.{number}.feed_forward"] = why_feed_forward_is_called(layer.feed_forward)
    return {place: reason for place, reason in found.items() if reason}


def why_attention_is_called(attention: AttentionPart) -> str:
    """Why there are no operators for a layer's attention, "" where there are."""
    if not isinstance(attention, SelfAttention):
        return f"no operators for {type(attention).__name__}"
    if attention.qk_norm is not None and not isinstance(attention.qk_norm, HeadNorm):
        return f"no operator for {type(attention.qk_norm).__name__} of queries and keys"
    return _why_called(attention.qkv, attention.output)


def why_feed_forward_is_called(forward: RowMap) -> str:
    """The same for what is behind it."""
    if not isinstance(forward, GatedFeedForward):
        return f"no operators for {type(forward).__name__}"
    if native_kind(forward.activation) is None:
        return "no operator for its activation"
    return _why_called(forward.gate_up, forward.down)


def _why_called(*linears: RowMap) -> str:
    for linear in linears:
        if not isinstance(linear, QuantisedLinear | SideBySide):
            return f"no operator for {type(linear).__name__}"
    return ""


def _tables(linear: RowMap) -> Sequence[QuantisedLinear]:
    if isinstance(linear, SideBySide):
        return linear.parts
    assert isinstance(linear, QuantisedLinear)
    return (linear,)


def _outputs(linear: RowMap) -> int:
    return sum(part.rows for part in _tables(linear))
