"""Messages to and from an executor as bytes: there and back, small when steady, refused when damaged."""

from __future__ import annotations

import random
import runpy
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.messages import (
    EMPTY,
    EMPTY_BLOCKS,
    EMPTY_PAIRS,
    EMPTY_TRIPLES,
    AdaptableLinear,
    Adapter,
    Constraint,
    Handshake,
    LayerGroup,
    LearnAdapter,
    LearnGrammar,
    LearnVocabulary,
    Load,
    LoadFailed,
    Logprobs,
    NewRow,
    Ping,
    Pooled,
    Pooling,
    PromptLogprobs,
    RankLoaded,
    RequestId,
    RunExperts,
    Shutdown,
    Step,
    StepDone,
    StepFailed,
)
from asyncpage.pipes.wire import FROM_EXECUTOR, TO_EXECUTOR, Decoder, Encoder

SHARED = runpy.run_path(str(Path(__file__).with_name("far_process.py")))
canonical = SHARED["canonical"]
ALL = TO_EXECUTOR | FROM_EXECUTOR

ROWS = np.arange(256, dtype=np.int32)
ONES = np.ones(256, dtype=np.int32)

# --- any message -------------------------------------------------------------------------------------------------

int64 = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 2**31 - 1)
text = st.text(st.characters(), max_size=12)  # lone surrogates too
finite = st.floats(allow_nan=False)
token_bytes = st.lists(small, max_size=20).map(lambda ids: np.array(ids, "<i4").tobytes())


def column(shape: Any, dtype: Any = np.int32) -> st.SearchStrategy[Any]:
    size = 4 * int(np.prod(shape))
    return st.binary(min_size=size, max_size=size).map(lambda data: np.frombuffer(data, dtype).reshape(shape))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    size = draw(st.integers(0, 20))
    return draw(column(size)), draw(column(size))


sampling = st.builds(
    SamplingParams,
    n=small,
    max_tokens=st.none() | small,
    temperature=finite,
    seed=st.none() | int64,
    stop=st.lists(text, max_size=3).map(tuple),
    allowed_token_ids=st.none() | st.lists(small, max_size=5).map(tuple),
    logit_bias=st.lists(st.tuples(small, finite), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
    ignore_eos=st.booleans(),
)
adapters = st.builds(Adapter, text, text)
new_rows = st.builds(
    NewRow,
    row=small,
    request=st.integers(0, 2**63 - 1).map(RequestId),
    tokens=token_bytes,
    prompt_tokens=small,
    computed=small,
    tables=st.lists(token_bytes, max_size=3).map(tuple),
    sampling=sampling,
    seed=st.integers(0, 2**64 - 1),
    end_token_ids=st.lists(small, max_size=4).map(tuple),
    bad_word_ids=st.lists(st.lists(small, max_size=3).map(tuple), max_size=3).map(tuple),
    adapter_slot=small,
    constraint=st.none() | st.builds(Constraint, st.binary(max_size=16), st.binary(max_size=40)),
    pooling=st.none() | st.builds(Pooling, st.sampled_from(("last", "mean", "cls")), st.booleans()),
    lora=st.none() | adapters,
)


@st.composite
def any_step(draw: st.DrawFn) -> Step:
    rows, counts = draw(pairs())
    width = st.integers(0, 5)
    return Step(
        draw(int64), draw(int64), rows, counts, draw(column(draw(width))),
        draw(st.lists(new_rows, max_size=3).map(tuple)),
        draw(column((draw(width), 4))), draw(column((draw(width), 3))), draw(column((draw(width), 2))),
        draw(column((draw(width), 2))),
    )  # fmt: skip


@st.composite
def any_logprobs(draw: st.DrawFn, size: int) -> Logprobs:
    width = draw(st.integers(0, 4))
    return Logprobs(
        draw(column(size, np.float32)), draw(column(size)),
        draw(column((size, width))), draw(column((size, width), np.float32)),
    )  # fmt: skip


@st.composite
def any_done(draw: st.DrawFn) -> StepDone:
    rows, counts = draw(pairs())
    tokens = draw(column(draw(st.integers(0, 20))))
    sizes = draw(st.lists(st.integers(0, 5), max_size=2))
    prompts = [PromptLogprobs(draw(small), draw(small), draw(column(n)), draw(any_logprobs(n))) for n in sizes]
    return StepDone(
        draw(int64), draw(int64), rows, counts, tokens,
        draw(any_logprobs(len(tokens))) if draw(st.booleans()) else None,
        tuple(prompts),
        draw(st.lists(st.tuples(small, text), max_size=2).map(tuple)),
        draw(int64),
        draw(st.lists(st.builds(Pooled, small, token_bytes), max_size=2).map(tuple)),
        draw(st.lists(small, max_size=3).map(tuple)),
        draw(column(draw(st.integers(0, 5)))),
        draw(int64),
    )  # fmt: skip


plain = st.recursive(
    st.none() | st.booleans() | int64 | finite | text | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
groups = st.builds(LayerGroup, st.sampled_from(["full", "window"]), small, small)
handshakes = st.builds(
    Handshake,
    text, small, small, small, small, st.lists(groups, max_size=3).map(tuple), small, small, text, text, text, text,
    small, st.integers(0, 2**63 - 1), st.lists(text, max_size=3).map(tuple),
    linears=st.lists(st.builds(AdaptableLinear, text, small, small), max_size=3).map(tuple),
)  # fmt: skip
messages = st.one_of(
    any_step(),
    any_done(),
    st.builds(Load, st.dictionaries(text, plain, max_size=4), small, small),
    st.builds(LoadFailed, text, text),
    st.builds(StepFailed, int64, int64, text),
    handshakes,
    st.just(Shutdown()),
    st.builds(RunExperts, small, column(5)),
    st.builds(RankLoaded, small, small),
    st.builds(LearnVocabulary, st.binary(max_size=40), column(7)),
    st.builds(LearnAdapter, small, adapters),
    st.builds(
        LearnGrammar,
        st.builds(Constraint, st.binary(max_size=16), st.binary(max_size=40)),
        st.lists(st.binary(max_size=16), max_size=3).map(tuple),
    ),
)


def encoded(encoder: Encoder, message: Any) -> bytes:
    return b"".join(encoder.encode(message))


@settings(max_examples=80, deadline=None)
@given(st.lists(messages, max_size=5))
def test_every_message_comes_back_as_it_was(sent: list[Any]) -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    for message in sent:
        assert canonical(decoder.decode(encoded(encoder, message))) == canonical(message)


@pytest.mark.parametrize("make", [SHARED["steps"], SHARED["answers"]])
def test_long_random_conversations_come_back_as_they_were(make: Any) -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    for message in make(11, 1000):
        assert canonical(decoder.decode(encoded(encoder, message))) == canonical(message)


# --- steady decode -----------------------------------------------------------------------------------------------


def test_a_step_of_steady_decode_costs_less_than_a_hundred_bytes() -> None:
    encoder = Encoder()
    assert len(encoded(encoder, Step(0, 0, ROWS, ONES))) > 2048
    assert len(encoded(encoder, Step(1, 0, ROWS.copy(), ONES.copy()))) < 100
    assert len(encoded(encoder, StepDone(1, 0, ROWS, ONES, ROWS))) < 1024 + 100


def test_rows_that_did_not_change_are_the_same_arrays_as_before() -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    first: Any = decoder.decode(encoded(encoder, Step(0, 0, ROWS, ONES)))
    second: Any = decoder.decode(encoded(encoder, Step(1, 0, ROWS.copy(), ONES)))
    assert second.rows is first.rows
    assert second.counts is first.counts


@pytest.mark.parametrize(("rows", "counts"), [(ROWS[:-1], ONES[:-1]), (ROWS, 2 * ONES), (ROWS[::-1], ONES)])
def test_rows_or_counts_that_changed_are_sent_whole(rows: Any, counts: Any) -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    decoder.decode(encoded(encoder, Step(0, 0, ROWS, ONES)))
    again: Any = decoder.decode(encoded(encoder, Step(1, 0, rows, counts)))
    assert np.array_equal(again.rows, rows)
    assert np.array_equal(again.counts, counts)


@pytest.mark.parametrize("rows", [ROWS, EMPTY])
def test_after_a_message_that_was_not_sent_the_next_one_is_whole(rows: Any) -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    decoder.decode(encoded(encoder, Step(0, 0, ROWS[:3], ONES[:3])))
    encoder.encode(Step(1, 0, rows, ONES[: len(rows)]))
    encoder.forget()
    received: Any = decoder.decode(encoded(encoder, Step(1, 0, rows, ONES[: len(rows)])))
    assert np.array_equal(received.rows, rows)


def test_a_sender_that_changes_its_array_after_sending_does_not_corrupt_the_next_step() -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    rows = ROWS.copy()
    decoder.decode(encoded(encoder, Step(0, 0, rows, ONES)))
    rows[0] = 999
    received: Any = decoder.decode(encoded(encoder, Step(1, 0, rows, ONES)))
    assert received.rows[0] == 999


def test_received_columns_cannot_be_written() -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    done: Any = decoder.decode(encoded(encoder, StepDone(0, 0, ROWS, ONES, ROWS)))
    for array in (done.rows, done.counts, done.tokens):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_small_step_does_not_keep_a_large_one_alive() -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    pairs = np.zeros((100_000, 2), np.int32)
    step: Any = decoder.decode(encoded(encoder, Step(0, 0, ROWS, ONES, saves=pairs)))
    for array in (step.rows, step.counts):
        assert array.base is None


def test_strided_and_foreign_scalar_values_are_sent_by_value() -> None:
    encoder, decoder = Encoder(), Decoder(ALL)
    row = NewRow(np.int32(3), RequestId(1), b"", np.int64(2), 0, (), SamplingParams(), np.uint64(2**64 - 1))  # type: ignore[arg-type]
    step = Step(np.int64(1), 0, ROWS[::2], ONES[::2], added=(row,))  # type: ignore[arg-type]
    received: Any = decoder.decode(encoded(encoder, step))
    assert np.array_equal(received.rows, ROWS[::2])
    assert received.added == (NewRow(3, RequestId(1), b"", 2, 0, (), SamplingParams(), 2**64 - 1),)


# --- refusals ----------------------------------------------------------------------------------------------------

LOGPROBS = Logprobs(np.zeros(3, np.float32), EMPTY, EMPTY_PAIRS, np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Step(0, 0, ROWS.astype(np.int64), ONES), "rows must be int32"),
        (Step(0, 0, ROWS.reshape(2, 128), ONES), "rows must be int32"),
        (Step(0, 0, ROWS, ONES[:-1]), "256 rows with 255 counts"),
        (Step(0, 0, ROWS, ONES, blocks=np.zeros((3, 2), np.int32)), "blocks must be int32 of 4 columns"),
        (Step(0, 0, ROWS, ONES, copies=np.zeros((3, 2), np.int32)), "copies must be int32 of 3 columns"),
        (Step(0, 0, ROWS, ONES, saves=np.zeros((3, 3), np.int32)), "saves must be int32 of 2 columns"),
        (Step(2**63, 0, ROWS, ONES), "number that no link carries"),
        (StepDone(0, 0, ROWS, ONES, ROWS[:3], LOGPROBS), "ranks must be int32"),
        (StepFailed(0, 0, object()), "StepFailed holds what no link carries"),  # type: ignore[arg-type]
        (Load({"a": {1, 2}}), "Load holds what no link carries"),
        (Load({"a": 2**65}), "Load holds what no link carries"),
        (Ping(0, 0), "carries no Ping"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_its_reason(message: Any, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        Encoder().encode(message)


@pytest.mark.parametrize(("accepts", "refused"), [(TO_EXECUTOR, FROM_EXECUTOR), (FROM_EXECUTOR, TO_EXECUTOR)])
def test_a_message_of_the_other_direction_is_refused(accepts: frozenset[type], refused: frozenset[type]) -> None:
    for message in (*SHARED["steps"](1, 5), *SHARED["answers"](1, 20), Shutdown(), LoadFailed("", "")):
        if type(message) in refused:
            with pytest.raises(ProtocolError, match="does not come this way"):
                Decoder(accepts).decode(encoded(Encoder(), message))


def test_same_rows_without_rows_before_are_refused() -> None:
    encoder = Encoder()
    encoder.encode(Step(0, 0, ROWS, ONES))
    with pytest.raises(ProtocolError, match="the same 256 rows as before, but there were 0"):
        Decoder(ALL).decode(encoded(encoder, Step(1, 0, ROWS, ONES)))


def samples() -> list[bytes]:
    encoder = Encoder()
    return [encoded(encoder, m) for m in (*SHARED["steps"](2, 20), *SHARED["answers"](2, 20))]


def decode_or_refuse(decoder: Decoder, payload: bytes) -> None:
    with suppress(ProtocolError):
        decoder.decode(payload)


def test_a_message_cut_anywhere_is_refused() -> None:
    for payload in samples():
        if len(payload) > 3000:
            continue
        for length in range(len(payload)):
            decoder = Decoder(ALL)
            decoder._rows = decoder._counts = ROWS  # so that steady steps have something to refer to
            with pytest.raises(ProtocolError):
                decoder.decode(payload[:length])


def test_a_message_with_bytes_behind_it_is_refused() -> None:
    for payload in samples():
        with pytest.raises(ProtocolError):
            Decoder(ALL).decode(payload + b"\0")


def test_ten_thousand_damaged_messages_are_decoded_or_refused_and_nothing_else() -> None:
    chance = random.Random(5)
    originals = [payload for payload in samples() if len(payload) < 5000]
    for _ in range(10_000):
        payload = bytearray(chance.choice(originals))
        for _ in range(chance.choice((1, 1, 4))):
            payload[min(int(len(payload) * chance.random() ** 2), len(payload) - 1)] = chance.randrange(256)
        decode_or_refuse(Decoder(ALL), bytes(payload))


def test_ten_thousand_random_messages_are_refused() -> None:
    chance = random.Random(6)
    for _ in range(10_000):
        payload = struct.pack("=I", chance.randrange(9)) + chance.randbytes(chance.randrange(120))
        decode_or_refuse(Decoder(ALL), payload)


@settings(max_examples=200, deadline=None)
@given(st.integers(3, 7), plain | st.lists(plain, max_size=15))
def test_well_formed_records_of_wrong_values_are_decoded_or_refused(kind: int, value: Any) -> None:
    decode_or_refuse(Decoder(ALL), struct.pack("=I", kind) + msgpack.packb(value, unicode_errors="surrogatepass"))


def test_announced_lengths_allocate_nothing() -> None:
    huge = 2**32 - 1
    payloads = [
        struct.pack("=IIqqIIIIIII", 1, 0, 0, 0, *(huge,) * 7),
        struct.pack("=IIqqqIII", 2, 2, 0, 0, 0, 0, huge, huge),
        struct.pack("=IIqqIIIIIII", 1, 4, 0, 0, *(0,) * 7) + b"\x91\xdd\xff\xff\xff\xff",  # msgpack: 2**32 - 1 values
        struct.pack("=I", 4) + b"\x93\xdf\xff\xff\xff\xff",  # as many keys
        struct.pack("=I", 5) + b"\x92\xdb\xff\xff\xff\xff",  # a string as long
        struct.pack("=I", 5) + b"\x91" * 100_000,  # as deep
    ]
    tracemalloc.start()
    try:
        for payload in payloads:
            with pytest.raises(ProtocolError):
                Decoder(ALL).decode(payload)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_no_extension_type_is_built() -> None:
    for value in (msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 0)):
        packed = msgpack.packb([{"a": value}, 0, 1])
        try:
            load: Any = Decoder(ALL).decode(struct.pack("=I", 4) + packed)
        except ProtocolError:
            continue
        assert type(load.settings["a"]) is float


def test_absent_columns_are_the_shared_empty_ones() -> None:
    step: Any = Decoder(ALL).decode(encoded(Encoder(), Step(0, 0, EMPTY, EMPTY)))
    assert step.removed is EMPTY
    assert step.blocks is EMPTY_BLOCKS
    assert step.copies is EMPTY_TRIPLES
    assert step.saves is EMPTY_PAIRS
    assert step.loads is EMPTY_PAIRS
    assert replace(step, number=1).added == ()
