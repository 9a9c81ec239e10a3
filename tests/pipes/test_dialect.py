"""What a journal tells of messages: every field that could hold a prompt, an answer or a secret is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from asyncpage.core.block_names import chain_names
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure
from asyncpage.messages import (
    Accepted,
    Adapter,
    Admit,
    Answer,
    Ask,
    CacheEvent,
    CacheEvents,
    Candidate,
    Constraint,
    End,
    Expect,
    Granted,
    NewRow,
    Pooled,
    Pooling,
    Prefix,
    PromptLogprobs,
    Refused,
    Released,
    RequestId,
    RequestOptions,
    Reserve,
    ResetCache,
    Step,
    StepDone,
    StepTokens,
    ToDetokenizer,
    ToKvManager,
    ToScheduler,
    Why,
)
from asyncpage.messages.values import EMPTY, Logprobs
from asyncpage.pipes.journal.dialect import MESSAGES, journal_dialect, shapes
from asyncpage.pipes.journal.pseudonym import KEY_BYTES, AsRecorded, Pseudonyms

VOCAB = 32_000
NAMES = Pseudonyms(bytes(range(KEY_BYTES)), VOCAB)
DIALECT = journal_dialect(NAMES)
READING = journal_dialect(AsRecorded(), shapes())

# Fields of strings, bytes, columns or numbers without a class that a journal tells as they are, because nothing in
# them comes from a prompt, an answer or a key. A new field is put here, or into the dialect, by somebody who thought.
TOLD = {
    "Adapter.identity",
    "Admission.tables", "Ask.question", "Candidate.label", "End.reason",
    "ExecutorGone.reason", "ExecutorLost.reason", "Failure.code", "Failure.message", "Failure.param",
    "Granted.blocks", "Granted.copies", "Granted.counts", "Granted.hits", "Granted.loads", "Granted.parked",
    "Granted.rows", "Granted.saves", "Granted.victims", "Granted.woken", "NewRow.tables", "Pooling.kind",
    "RequestOptions.label", "Reserve.computed", "Reserve.drafts", "Reserve.filled", "Reserve.free_rows",
    "Reserve.order", "Reserve.victims", "Reserve.wants", "Step.blocks", "Step.copies", "Step.counts", "Step.loads",
    "Step.removed", "Step.rows", "Step.saves", "StepDone.counts", "StepDone.drafted", "StepDone.failed",
    "StepDone.late", "StepDone.rows", "StepFailed.reason", "StepTokens.counts",
    "StepTokens.drafted", "StepTokens.prompt_logprobs", "Stirred.woken", "Why.label",
}  # fmt: skip


def classes_of(annotation: Any) -> Iterator[type]:
    """The dataclasses in an annotation, and in their fields."""
    if is_dataclass(annotation):
        yield annotation  # type: ignore[misc]  # a class
        if annotation is not SamplingParams:
            for hint in get_type_hints(annotation).values():
                yield from classes_of(hint)
    for argument in get_args(annotation):
        yield from classes_of(argument)


def may_hold_anything(annotation: Any) -> bool:
    """More than one number or truth value, outside a class of its own."""
    if is_dataclass(annotation):
        return False
    arguments = get_args(annotation)
    if annotation in (str, bytes, object, Any) or "ndarray" in str(annotation) or "Literal" in str(annotation):
        return True
    if str(annotation).startswith(("tuple", "collections.abc.Mapping")):
        return any(may_hold_anything(item) or item in (int, RequestId) for item in arguments)
    return any(may_hold_anything(item) for item in arguments)


def test_every_field_that_may_hold_a_secret_is_told_on_purpose_or_not_at_all() -> None:
    roots = (ToScheduler, ToKvManager, ToDetokenizer, Step, Accepted, Refused, Answer, CacheEvents)
    classes = {cls for root in roots for cls in classes_of(root)}
    assert {Admit, Granted, Reserve, NewRow, Prefix, RequestOptions, Failure} <= classes
    written = DIALECT.replaced
    found = set()
    for cls in classes - {SamplingParams} - set(written):
        for field in fields(cls):
            hint = get_type_hints(cls)[field.name]
            if (cls, field.name) not in written and may_hold_anything(hint):
                found.add(f"{cls.__name__}.{field.name}")
    assert found <= TOLD


def test_of_sampling_only_numbers_and_renamed_ids_are_told() -> None:
    """A new field of another kind is left out until somebody has thought about it."""
    numbers = {field.name for field in fields(SamplingParams) if isinstance(field.default, int | float)}
    unset = {"max_tokens", "seed", "logprobs", "prompt_logprobs"}  # numbers, too, where they are given
    renamed = {"stop_token_ids", "allowed_token_ids", "logit_bias"}
    left_out = {"stop", "bad_words"}
    assert {field.name for field in fields(SamplingParams)} - numbers == unset | renamed | left_out


def test_every_message_of_the_two_actors_can_be_read_by_its_name() -> None:
    for root in (ToScheduler, ToKvManager):
        for cls in get_args(root):
            assert MESSAGES[cls.__name__] is cls
            READING._reader(cls)


def test_of_a_vector_only_that_it_came_is_told() -> None:
    secret = np.array([0.1, 0.2], dtype="<f4").tobytes()
    empty = np.empty(0, dtype=np.int32)
    done = StepDone(1, 1, empty, empty, empty, pooled=(Pooled(3, secret),))
    end = End(RequestId(7), "stop", embedding=secret)
    admit = Admit(RequestId(7), b"", (), SamplingParams(), RequestOptions(pooling=Pooling("mean", is_normalized=False)))
    assert secret not in DIALECT.pack(done) + DIALECT.pack(end)
    assert READING.unpack(StepDone, DIALECT.pack(done)).pooled == (Pooled(3, b""),)
    assert READING.unpack(Admit, DIALECT.pack(admit)).options == admit.options


@pytest.mark.parametrize("question", [ResetCache(), Why("label")])
def test_a_question_reads_back_as_the_one_that_was_asked(question: ResetCache | Why) -> None:
    ask = Ask(3, 0, question)
    assert READING.unpack(Ask, DIALECT.pack(ask)) == ask


def column(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


SECRET = (20_011, 20_021, 20_023, 20_029, 20_047, 20_051)
SECRET_BYTES = column(*SECRET).tobytes()
SECRET_SAMPLING = SamplingParams(
    n=2,
    stop=("a secret",),
    stop_token_ids=(20_011,),
    bad_words=("secret",),
    allowed_token_ids=SECRET,
    logit_bias=((20_021, 1.5),),
    temperature=0.5,
)
SECRET_NAMES = chain_names(SECRET_BYTES, 2, salt="a secret")
LOGPROBS = Logprobs(
    np.zeros(6, dtype=np.float32), column(*SECRET), column(*SECRET).reshape(6, 1), np.zeros((6, 1), dtype=np.float32)
)
GRAMMAR = Constraint(b"digest of secret", b"the secret grammar")
ADMIT = Admit(
    RequestId(7),
    SECRET_BYTES,
    SECRET_NAMES,
    SECRET_SAMPLING,
    RequestOptions(
        priority=3,
        deadline=2.5,
        cache_salt="a secret",
        label="chat-1",
        constraint=GRAMMAR,
        lora=Adapter("ab" * 32, "/a secret folder"),
    ),
    (SECRET[:2], SECRET[2:]),
)
PREFIX = Prefix(b"a secret root", SECRET_BYTES, SECRET_NAMES)
NEW_ROW = NewRow(
    1,
    RequestId(7),
    SECRET_BYTES,
    6,
    0,
    (b"\x01\x00\x00\x00",),
    SECRET_SAMPLING,
    5,
    SECRET[:2],
    (SECRET[2:4],),
    constraint=GRAMMAR,
)
DONE = StepDone(
    3, 1, column(1), column(6), column(*SECRET), LOGPROBS, (PromptLogprobs(1, 2, column(*SECRET), LOGPROBS),)
)


@pytest.mark.parametrize(
    "message",
    [
        ADMIT,
        Expect(RequestId(7), SECRET_SAMPLING, 6, SECRET_BYTES),
        StepTokens((RequestId(7),), column(6), column(*SECRET), LOGPROBS),
        Step(3, 1, column(1), column(6), added=(NEW_ROW,)),
        DONE,
        Reserve(
            3, 2, column(1), column(6), column(1), 1, column(1), (Candidate(RequestId(7), 6, PREFIX),), 16, (2,),
            (Released(1, SECRET_BYTES),), column(1, 0).reshape(1, 2), column(*SECRET).reshape(1, 6),
        ),
        CacheEvents((CacheEvent("stored", SECRET_NAMES[1], SECRET_NAMES[0], SECRET_BYTES, block_size=6),)),
        Answer(1, {"tokens": SECRET, "text": "a secret"}),
    ],
    ids=lambda message: type(message).__name__,
)  # fmt: skip
def test_no_id_text_salt_or_digest_is_written(message: object) -> None:
    packed = DIALECT.pack(message)
    assert b"secret" not in packed
    assert not [name for name in SECRET_NAMES if name in packed]
    for token in SECRET:
        # As msgpack writes it, and as it lies in a column. 20,000 and more, so that no count looks like it.
        assert token.to_bytes(2, "big") not in packed
        assert token.to_bytes(4, "little") not in packed


def test_an_input_reads_back_with_everything_that_decides() -> None:
    read = READING.unpack(Admit, DIALECT.pack(ADMIT))
    assert (read.request, read.options.priority, read.options.deadline, read.options.label) == (7, 3, 2.5, "chat-1")
    assert read.tokens == NAMES.of_bytes(SECRET_BYTES)
    assert len(read.names) == len(SECRET_NAMES)
    assert read.options.constraint == Constraint(bytes.fromhex(NAMES.of_word(GRAMMAR.digest.hex())), b"")
    assert read.options.cache_salt == NAMES.of_word("a secret") != ""
    assert read.sampling == SamplingParams(
        n=2,
        stop_token_ids=NAMES.of_ids((20_011,)),
        allowed_token_ids=NAMES.of_ids(SECRET),
        logit_bias=((NAMES.of_ids((20_021,))[0], 1.5),),
        temperature=0.5,
    )
    assert read.bad_word_ids == (NAMES.of_ids(SECRET[:2]), NAMES.of_ids(SECRET[2:]))

    done = READING.unpack(StepDone, DIALECT.pack(DONE))
    assert (done.number, done.epoch, done.rows.tolist(), done.counts.tolist()) == (3, 1, [1], [6])
    assert done.tokens.tolist() == list(NAMES.of_ids(SECRET))
    assert done.logprobs is None
    (prompt,) = done.prompt_logprobs
    assert (prompt.row, prompt.start, len(prompt.tokens), len(prompt.logprobs.ranks)) == (1, 2, 6, 0)


def test_what_a_replay_writes_of_the_same_decision_is_the_same() -> None:
    """Recorded under pseudonyms, decided again under pseudonyms: equal bytes without a key."""
    renamed = NewRow(
        1, RequestId(7), NAMES.of_bytes(SECRET_BYTES), 6, 0, NEW_ROW.tables,
        READING.unpack(Admit, DIALECT.pack(ADMIT)).sampling, 5, NAMES.of_ids(SECRET[:2]), (NAMES.of_ids(SECRET[2:4]),),
        constraint=READING.unpack(Admit, DIALECT.pack(ADMIT)).options.constraint,
    )  # fmt: skip
    recorded = DIALECT.pack(Step(3, 1, column(1), column(6), added=(NEW_ROW,)))
    assert READING.pack(Step(3, 1, column(1), column(6), added=(renamed,))) == recorded
    other = Step(3, 1, column(1), column(6), added=(NEW_ROW,), removed=EMPTY, blocks=column(1, 0, 0, 9).reshape(1, 4))
    assert DIALECT.pack(other) != recorded
