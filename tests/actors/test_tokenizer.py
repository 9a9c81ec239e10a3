"""The tokenizer actor: each prompt becomes one Admit or a refusal a choice, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from asyncpage.actors.base import Continuation
from asyncpage.actors.tokenizer import MAX_BAD_WORD_TOKENS, TokenizerActor
from asyncpage.core.block_names import chain_names
from asyncpage.core.pooling import POOLED
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import UnknownMessage
from asyncpage.messages import (
    FRONTEND_SHIFT,
    Adapter,
    Admit,
    Cancel,
    ChatPrompt,
    Encode,
    Encoded,
    Pooling,
    Refused,
    RequestId,
    RequestOptions,
    TextPrompt,
    Tokenize,
    TokenPrompt,
)
from asyncpage.testing.clock import FakeClock
from asyncpage.text.byte_alphabet import CHARACTERS
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.pieces import GPT2, WHOLE, Splitting
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary import AddedToken, Vocabulary

BOS, END = 256, 257
MAX_LEN = 64
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def vocabulary() -> Vocabulary:
    """A token for each byte, and two control tokens: ids can be told by hand."""
    return Vocabulary(
        source="bytes",
        tokens=[*CHARACTERS, "<|bos|>", "<|end|>"],
        merges=lambda: iter(()),
        added=(AddedToken(BOS, "<|bos|>"), AddedToken(END, "<|end|>")),
        splitting=Splitting(GPT2),
        prefix_ids=(BOS,),
        bos_id=BOS,
        end_ids=(END,),
        named={"bos_token": "<|bos|>"},
    )


class TickingClock(FakeClock):
    """A second goes by with every look: each slice is over as soon as it can be."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks = count()

    def now(self) -> float:
        return float(next(self._ticks))


class Box(list[Any]):
    """An address that keeps what it is sent."""

    def send(self, message: object) -> None:
        self.append(message)


class Bench:
    """The actor, two front ends, and its continuations, which the test runs."""

    def __init__(
        self,
        *,
        has_template: bool = True,
        ticks: bool = False,
        max_model_len: int = MAX_LEN,
        suffix_ids: tuple[int, ...] = (),
    ) -> None:
        self.scheduler = Box()
        self.frontends = [Box(), Box()]
        words = replace(vocabulary(), suffix_ids=suffix_ids)
        self.actor = TokenizerActor(
            Tokenizer(words),
            ChatTemplate({"default": CHAT}, words) if has_template else None,
            block_size=4,
            max_model_len=max_model_len,
            vocab_size=300,
            scheduler=self.scheduler,
            frontends=self.frontends,
            clock=TickingClock() if ticks else FakeClock(),
        )

    def begin(self, message: Tokenize | Encode | Cancel) -> Continuation | None:
        """As the cell does it: what is raised fails the message."""
        return self.guarded(message, lambda: self.actor.receive(message))

    def guarded(self, message: object, call: Callable[[], Continuation | None]) -> Continuation | None:
        try:
            return call()
        except Exception as error:
            if not self.actor.fail(message, error):
                raise
            return None

    def run(self, message: Tokenize | Encode) -> int:
        """Until nothing is left; returns how many further slices it took."""
        rest, slices = self.begin(message), 0
        while rest is not None:
            rest = self.guarded(message, rest)
            slices += 1
        return slices

    def admitted(self, prompt: Any, sampling: SamplingParams | None = None, **options: Any) -> Admit:
        self.run(ask(prompt, sampling, **options))
        (admit,) = self.scheduler
        assert isinstance(admit, Admit)
        self.scheduler.clear()
        return admit

    def refused(self, prompt: Any, sampling: SamplingParams | None = None, **options: Any) -> Refused:
        self.run(ask(prompt, sampling, **options))
        assert self.scheduler == []
        (refused,) = self.frontends[0]
        assert isinstance(refused, Refused)
        self.frontends[0].clear()
        return refused


def ask(prompt: Any, sampling: SamplingParams | None = None, request: int = 7, **options: Any) -> Tokenize:
    if isinstance(prompt, str):
        prompt = TextPrompt(prompt)
    elif isinstance(prompt, list):
        prompt = TokenPrompt(packed(prompt))
    return Tokenize(RequestId(request), prompt, sampling or SamplingParams(), RequestOptions(**options))


def packed(ids: list[int]) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


def test_a_text_becomes_its_ids_with_what_the_model_puts_around() -> None:
    bench = Bench()
    admit = bench.admitted("hi<|end|>", SamplingParams(max_tokens=None))
    assert admit.tokens == packed([BOS, *b"hi", END])
    assert (admit.request, admit.sampling.max_tokens, admit.bad_word_ids) == (7, None, ())


def test_token_ids_are_taken_as_they_are() -> None:
    assert Bench().admitted([5, 299, 0]).tokens == packed([5, 299, 0])


def test_a_conversation_is_rendered_and_gets_no_second_beginning() -> None:
    messages = ({"role": "user", "content": "a<|end|>"}, {"role": "user", "content": "b"})
    admit = Bench().admitted(ChatPrompt(messages))
    assert admit.tokens == packed([BOS, *b"a<|end|>", END, *b"b", END])


def test_the_names_are_those_of_the_chain_unless_the_cache_is_refused() -> None:
    bench = Bench(max_model_len=10_000)
    ids = list(range(200)) * 30  # more blocks than one slice names
    for salt, adapter in (("", ""), ("s", ""), ("", "a")):
        admit = bench.admitted(ids, cache_salt=salt, lora=Adapter(adapter, "/folder") if adapter else None)
        assert admit.names == chain_names(packed(ids), 4, salt=salt, adapter=adapter)
    assert bench.admitted(ids, use_cache=False).names == ()
    assert bench.admitted([1, 2, 3]).names == ()


@pytest.mark.parametrize("prompt", ["x" * 62, "x" * 63, "x" * 640])
def test_a_prompt_must_leave_room_for_an_answer(prompt: str) -> None:
    bench = Bench()
    length = len(prompt) + 1
    if length < MAX_LEN:
        assert bench.admitted(prompt)
        return
    failure = bench.refused(prompt).failure
    assert (failure.status, failure.code, failure.param) == (400, "context_length_exceeded", "prompt")
    assert f"{length} tokens" in failure.message
    assert str(MAX_LEN) in failure.message


def test_a_prompt_that_fills_the_context_may_ask_for_no_answer() -> None:
    bench = Bench()
    assert bench.admitted([1] * MAX_LEN, SamplingParams(max_tokens=0))
    assert bench.refused([1] * (MAX_LEN + 1), SamplingParams(max_tokens=0)).failure.code == "context_length_exceeded"


def test_truncation_keeps_the_end_of_the_prompt() -> None:
    bench = Bench()
    assert bench.admitted(list(range(200)), truncate_prompt_tokens=5).tokens == packed([195, 196, 197, 198, 199])
    assert bench.admitted([1, 2], truncate_prompt_tokens=5).tokens == packed([1, 2])
    assert bench.refused([1, 2], truncate_prompt_tokens=0).failure.param == "truncate_prompt_tokens"


def test_of_a_prompt_that_is_to_be_pooled_truncation_keeps_the_beginning_and_what_stands_around_a_text() -> None:
    bench = Bench(suffix_ids=(END,))
    pooled = {"sampling": POOLED, "pooling": Pooling("mean")}
    assert bench.admitted(list(range(200)), truncate_prompt_tokens=5, **pooled).tokens == packed([0, 1, 2, 3, 4])
    for keep, ids in ((9, [BOS, *b"efg", END]), (5, [BOS, *b"efg", END]), (4, [BOS, *b"ef", END]), (1, [BOS])):
        found = bench.admitted("efg", truncate_prompt_tokens=keep, **pooled)
        assert found.tokens == packed(ids)
    assert bench.admitted("efg", truncate_prompt_tokens=4).tokens == packed([*b"efg", END])  # an answer needs the end
    assert len(bench.admitted(list(range(64)), **pooled).tokens) == 4 * 64  # and no room behind it


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "is empty"),
        ([1, 2, 300], "token id 300 at index 2 is outside the vocabulary of 300"),
        ([1, -1], "token id -1 at index 1"),
        ("ab\ud800", "not Unicode"),
        ("x" * 1_000_000, "1000000 bytes or more"),
        (ChatPrompt(({"role": "user", "content": "x" * 1_000_000},)), "bytes or more"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(prompt: Any, message: str) -> None:
    failure = Bench().refused(prompt).failure
    assert failure.status == 400
    assert message in failure.message


def test_template_variables_do_not_replace_the_conversation() -> None:
    prompt = ChatPrompt(({"role": "user", "content": "x"},), kwargs={"messages": 3})
    assert Bench().admitted(prompt).tokens == packed([BOS, *b"x", END])


def test_an_empty_text_is_refused_where_nothing_is_put_around_it() -> None:
    words = replace(vocabulary(), prefix_ids=(), bos_id=None)
    bench = Bench()
    bench.actor._tokenizer = Tokenizer(words)
    assert "is empty" in bench.refused("").failure.message


def test_a_conversation_needs_a_template() -> None:
    bench = Bench(has_template=False)
    assert "no chat template" in bench.refused(ChatPrompt(({"role": "user", "content": "x"},))).failure.message


def test_bad_words_are_found_with_and_without_a_space() -> None:
    bench = Bench()
    admit = bench.admitted("x", SamplingParams(bad_words=("no", " no", "a b", " ", "<|end|>")))
    assert admit.bad_word_ids == (tuple(b"no"), tuple(b" no"), tuple(b"a b"), tuple(b" a b"), (32,), (END,), (32, END))


def test_bad_words_of_a_vocabulary_that_begins_with_a_space_are_found_inside_of_a_text_too() -> None:
    tokens = ["<unk>", "n", "o", "▁"]
    rules = SentencePieceRules(prefix="always", drops_first_space=True)
    bench = Bench()
    bench.actor._tokenizer = Tokenizer(
        Vocabulary("sentences", tokens, lambda: iter(()), (), Splitting(WHOLE), sentence_pieces=rules)
    )
    assert bench.admitted("n", SamplingParams(bad_words=("no",))).bad_word_ids == ((1, 2), (3, 1, 2))


def test_a_bad_word_without_tokens_is_refused() -> None:
    words = replace(vocabulary(), tokens=["" if n == 4 else token for n, token in enumerate(vocabulary().tokens)])
    bench = Bench()
    bench.actor._tokenizer = Tokenizer(words)
    assert bench.refused("x", SamplingParams(bad_words=("\x04",))).failure.param == "bad_words"


def test_the_tokens_of_all_bad_words_are_bounded() -> None:
    bench = Bench()
    # a byte is a token, and each word is read twice, once with a space
    words = tuple("x" * 127 + chr(65 + n) for n in range(MAX_BAD_WORD_TOKENS // 257 + 1))
    failure = bench.refused("x", SamplingParams(bad_words=words)).failure
    assert (failure.status, failure.param) == (400, "bad_words")
    assert str(MAX_BAD_WORD_TOKENS) in failure.message
    assert len(bench.admitted("x", SamplingParams(bad_words=words[:-1])).bad_word_ids) == 2 * len(words) - 2


def test_every_choice_of_a_refused_prompt_is_refused_at_its_own_front_end() -> None:
    bench = Bench()
    first = (1 << FRONTEND_SHIFT) + 20
    bench.run(ask([], SamplingParams(n=3), request=first))
    assert [refused.request for refused in bench.frontends[1]] == [first, first + 1, first + 2]
    assert bench.frontends[0] == []


def test_long_prompts_take_turns_and_a_short_one_goes_ahead() -> None:
    bench = Bench(ticks=True, max_model_len=100_000)
    long, short = ask("ab cd " * 2000, request=1), ask([1], request=2)
    rest = bench.begin(long)
    assert rest is not None
    bench.run(short)
    assert [admit.request for admit in bench.scheduler] == [2]
    slices = 0
    while rest is not None:
        rest, slices = rest(), slices + 1
    assert slices > 10
    assert [admit.request for admit in bench.scheduler] == [2, 1]
    assert bench.scheduler[1].tokens == packed([BOS, *b"ab cd " * 2000])


def test_a_cancel_in_the_middle_of_the_work_ends_it_with_one_refusal() -> None:
    bench = Bench(ticks=True, max_model_len=100_000)
    rest = bench.begin(ask("ab cd " * 2000))
    assert rest is not None
    bench.begin(Cancel(RequestId(7)))
    (refused,) = bench.frontends[0]
    assert (refused.request, refused.failure.status) == (7, 499)
    assert rest() is None
    assert bench.scheduler == []
    assert bench.actor.stats()["prompts_in_work"] == 0


def test_a_cancel_of_one_choice_goes_behind_the_admit_of_all() -> None:
    bench = Bench(ticks=True, max_model_len=100_000)
    rest = bench.begin(ask("ab cd " * 2000, SamplingParams(n=2)))
    bench.begin(Cancel(RequestId(8)))
    while rest is not None:
        rest = rest()
    admit, cancel = bench.scheduler
    assert (admit.request, cancel) == (7, Cancel(RequestId(8)))
    assert bench.frontends[0] == []


def test_cancelling_every_choice_refuses_every_choice() -> None:
    bench = Bench(ticks=True, max_model_len=100_000)
    rest = bench.begin(ask("ab cd " * 2000, SamplingParams(n=2)))
    bench.begin(Cancel(RequestId(8)))
    bench.begin(Cancel(RequestId(7)))
    assert rest is not None
    assert rest() is None
    assert [refused.request for refused in bench.frontends[0]] == [7, 8]
    assert bench.scheduler == []


def test_a_cancel_of_an_admitted_request_is_passed_on() -> None:
    bench = Bench()
    bench.admitted([1])
    bench.begin(Cancel(RequestId(7)))
    assert bench.scheduler == [Cancel(RequestId(7))]


def test_a_fault_of_ours_fails_its_request_only() -> None:
    bench = Bench()
    broken = replace(ask([1]), prompt=TokenPrompt(b"abc"))  # not whole ids: the server never sends it
    bench.run(broken)
    (refused,) = bench.frontends[0]
    assert (refused.failure.status, refused.failure.code) == (500, "internal_error")
    assert bench.admitted([1])


def test_the_ids_of_a_prompt_that_does_not_run_are_those_it_would_run_with() -> None:
    messages = ({"role": "user", "content": "a<|end|>"}, {"role": "user", "content": "b"})
    long = "long " * 100  # of more tokens than the context has
    for prompt, ids in (
        (TextPrompt("hi<|end|>"), [BOS, *b"hi", END]),
        (TextPrompt("hi<|end|>", add_special=False), [*b"hi", END]),
        (TextPrompt("", add_special=False), []),
        (TextPrompt(long), [BOS, *long.encode()]),
        (ChatPrompt(messages), [BOS, *b"a<|end|>", END, *b"b", END]),
        (ChatPrompt(messages, add_special=True), [BOS, BOS, *b"a<|end|>", END, *b"b", END]),
        (TokenPrompt(packed([5, 299])), [5, 299]),
    ):
        bench = Bench()
        bench.run(Encode(RequestId(7), prompt))
        assert (bench.frontends[0], bench.scheduler) == ([Encoded(RequestId(7), packed(ids))], [])
        assert bench.actor.stats()["prompts"] == 0
        if ids and len(ids) < 100:
            assert bench.admitted(prompt).tokens == packed(ids)


def test_a_prompt_without_ids_is_refused_though_it_does_not_run() -> None:
    bench = Bench(has_template=False)
    for prompt in (TokenPrompt(packed([300])), TextPrompt("ab\ud800"), TextPrompt("x" * 1_000_000), ChatPrompt(())):
        bench.run(Encode(RequestId(7), prompt))
        (refused,) = bench.frontends[0]
        assert (refused.request, refused.failure.status) == (7, 400)
        bench.frontends[0].clear()


def test_the_ids_of_a_long_prompt_are_found_in_slices_and_can_be_cancelled() -> None:
    bench = Bench(ticks=True, max_model_len=100_000)
    assert bench.run(Encode(RequestId(1), TextPrompt("ab cd " * 2000))) > 10
    rest = bench.begin(Encode(RequestId(2), TextPrompt("ab cd " * 2000)))
    bench.begin(Cancel(RequestId(2)))
    assert rest is not None
    assert rest() is None
    encoded, refused = bench.frontends[0]
    assert (encoded.request, refused.request, refused.failure.status) == (1, 2, 499)
    assert bench.scheduler == []


def test_a_message_without_an_arm_is_an_error() -> None:
    bench = Bench()
    with pytest.raises(UnknownMessage) as caught:
        bench.actor.receive("hello")
    assert not bench.actor.fail("hello", caught.value)
