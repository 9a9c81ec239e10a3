"""The detokenizer actor: texts, counts and ends of a step, told to the front ends concerned."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.actors.detokenizer import DetokenizerActor
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import Failure, UnknownMessage
from asyncpage.messages import (
    FRONTEND_SHIFT,
    End,
    Ended,
    Expect,
    Finish,
    Logprobs,
    PromptLogprobs,
    RequestId,
    Started,
    StepTokens,
    Texts,
)
from asyncpage.text.byte_alphabet import CHARACTERS
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary import AddedToken, Vocabulary

BOS, END, WORD = 256, 257, 258
ONE, TWO = RequestId(1), RequestId(2)
FAR = RequestId((1 << FRONTEND_SHIFT) + 1)


def tokenizer() -> Tokenizer:
    """A token for each byte, two control tokens and a longer word."""
    added = (AddedToken(BOS, "<|bos|>"), AddedToken(END, "<|end|>"))
    tokens = [*CHARACTERS, "<|bos|>", "<|end|>", "Ġword"]
    return Tokenizer(
        Vocabulary(
            "bytes", tokens, lambda: iter(()), added, Splitting(GPT2), prefix_ids=(BOS,), bos_id=BOS, end_ids=(END,)
        )
    )


class Box(list[Any]):
    """An address that keeps what it is sent."""

    def send(self, message: object) -> None:
        self.append(message)


class Bench:
    """The actor, with as many front ends as asked for."""

    def __init__(self, frontends: int = 1) -> None:
        self.scheduler = Box()
        self.frontends = [Box() for _ in range(frontends)]
        self.actor = DetokenizerActor(tokenizer(), self.scheduler, self.frontends)

    def expect(self, request: RequestId, prompt_tokens: int = 3, echo: bytes = b"", **sampling: Any) -> None:
        self.actor.receive(Expect(request, SamplingParams(**sampling), prompt_tokens, echo))

    def step(self, tokens: dict[RequestId, list[int]] | None = None, **parts: Any) -> Texts | None:
        """One step's tokens by request; returns what the first front end is told."""
        tokens = tokens or {}
        ids = [id for new in tokens.values() for id in new]
        counts = np.array([len(new) for new in tokens.values()], dtype=np.int32)
        self.actor.receive(StepTokens(tuple(tokens), counts, np.array(ids, dtype=np.int32), **parts))
        if not self.frontends[0]:
            return None
        (texts,) = self.frontends[0]
        self.frontends[0].clear()
        assert isinstance(texts, Texts)
        assert len(texts.requests) == len(texts.texts) == len(texts.counts)
        assert len(texts.token_ids) == texts.counts.sum()
        assert len(set(texts.requests)) == len(texts.requests)
        return texts

    def said(self, tokens: dict[RequestId, list[int]] | None = None, **parts: Any) -> Texts:
        texts = self.step(tokens, **parts)
        assert texts is not None
        return texts


def packed(ids: list[int]) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


def columns(tokens: list[int], width: int = 2) -> Logprobs:
    """Made-up numbers that can be told apart: -position for the token, ids and numbers counted up for the others."""
    count = len(tokens)
    return Logprobs(
        token_logprobs=-np.arange(count, dtype=np.float32),
        ranks=np.arange(1, count + 1, dtype=np.int32),
        top_ids=np.array([[65 + k for k in range(width)]] * count, dtype=np.int32).reshape(count, width),
        top_logprobs=np.array([[-n - k / 2 for k in range(width)] for n in range(count)], dtype=np.float32).reshape(
            count, width
        ),
    )


def test_each_requests_text_comes_as_its_tokens_come() -> None:
    bench = Bench()
    bench.expect(ONE)
    bench.expect(TWO)
    first = bench.said({ONE: [*b"a"], TWO: [WORD]})
    assert (first.requests, first.texts, first.counts.tolist(), first.token_ids.tolist()) == (
        (ONE, TWO),
        ("a", " word"),
        [1, 1],
        [97, WORD],
    )
    second = bench.said({TWO: [*"é".encode()[:1]], ONE: [*b"bc"]})
    assert (second.requests, second.texts, second.counts.tolist()) == ((TWO, ONE), ("", "bc"), [1, 2])
    third = bench.said({TWO: [*"é".encode()[1:]]})
    assert third.texts == ("é",)


def test_rows_that_stay_and_rows_that_change_places_are_told_the_same() -> None:
    dice = random.Random(4)
    staying, moving = Bench(), Bench()
    for bench in (staying, moving):
        bench.expect(ONE)
        bench.expect(TWO, stop=("ab a", "zz"), min_tokens=3)
    told: list[list[Any]] = [[], []]
    for number in range(300):
        tokens = {request: [dice.choice([*range(128, 256), 300, *b"ab ", END])] for request in (ONE, TWO)}
        moved = dict(reversed(tokens.items())) if number % 2 else tokens
        for bench, brought, out in zip((staying, moving), (tokens, moved), told, strict=True):
            texts = bench.said(brought)
            rows = zip(texts.requests, texts.texts, texts.counts.tolist(), texts.token_ids.tolist(), strict=True)
            out.append((sorted(rows), texts.finishes))
    assert told[0] == told[1]
    for bench in (staying, moving):
        finish = bench.said(ends=(End(ONE, "length"),)).finishes[0]
        assert finish.completion_tokens == 300


def test_an_end_flushes_and_gives_the_one_finish() -> None:
    bench = Bench()
    bench.expect(ONE, prompt_tokens=9, stop=("xyz",))
    bench.step({ONE: [*b"a"]}, started=(Started(ONE, 4),))
    texts = bench.said({ONE: [*b"xy"]})
    assert texts.texts == ("",)
    texts = bench.said({ONE: [0xC3]}, ends=(End(ONE, "length"),))
    assert texts.texts == ("xy\ufffd",)
    assert texts.finishes == (Finish(ONE, "length", 9, 4, 4),)
    assert bench.step({ONE: [*b"more"]}, ends=(End(ONE, "length"),)) is None
    assert bench.actor.stats()["streams"] == 0


@pytest.mark.parametrize("reason", ["abort", "error", "length", "stop"])
def test_everything_held_back_comes_out_at_every_kind_of_end(reason: Any) -> None:
    bench = Bench()
    bench.expect(ONE, stop=("xyz",))
    bench.step({ONE: [*b"axy"]})
    failure = Failure(500, "broken") if reason == "error" else None
    texts = bench.said(ends=(End(ONE, reason, failure=failure),))
    assert texts.texts == ("xy",)
    assert texts.counts.tolist() == [0]
    assert texts.finishes == (Finish(ONE, reason, 3, 3, 0, failure=failure),)


def test_the_vector_of_an_end_is_in_the_finish() -> None:
    bench = Bench()
    bench.expect(ONE, max_tokens=0)
    texts = bench.step({}, ends=(End(ONE, "stop", embedding=b"\0\0\x80?"),))
    assert texts.finishes == (Finish(ONE, "stop", 3, 0, 0, embedding=b"\0\0\x80?"),)


def test_an_end_with_nothing_to_say_is_told_all_the_same() -> None:
    bench = Bench()
    bench.expect(ONE)
    texts = bench.said(ends=(End(ONE, "abort"),))
    assert (texts.requests, texts.finishes) == ((), (Finish(ONE, "abort", 3, 0, 0),))


def test_a_stop_string_ends_the_answer_and_tells_the_scheduler() -> None:
    bench = Bench()
    bench.expect(ONE, stop=("STOP",))
    bench.step({ONE: [*b"abST"]})
    texts = bench.said({ONE: [*b"OPxx"]})
    assert (texts.texts, texts.counts.tolist(), texts.token_ids.tolist()) == (("",), [2], [*b"OP"])
    assert texts.finishes == (Finish(ONE, "stop", 3, 6, 0, stop_reason="STOP"),)
    assert bench.scheduler == [Ended(ONE, 6)]
    assert bench.step({ONE: [*b"late"]}) is None


def test_drafts_that_stood_count_as_far_as_their_tokens_do() -> None:
    bench = Bench()
    bench.expect(ONE, stop=("STOP",))
    bench.expect(TWO)

    def drafted(*numbers: int) -> np.ndarray:
        return np.array(numbers, dtype=np.int32)

    bench.step({ONE: [*b"ab"], TWO: [*b"x"]}, drafted=drafted(3, 0))
    bench.step({ONE: [*b"c"], TWO: [*b"y"]})
    texts = bench.said({ONE: [*b"STOPxx"], TWO: [*b"zz"]}, drafted=drafted(7, 1), ends=(End(TWO, "length"),))
    one, two = texts.finishes
    # Of a, b one had been guessed, of S, T, O, P three; two of those guesses fell, and two were right for nothing.
    assert (one.completion_tokens, one.accepted_drafts, one.rejected_drafts) == (7, 1 + 3, 2 + 4)
    assert (two.completion_tokens, two.accepted_drafts, two.rejected_drafts) == (4, 1, 0)
    bench.expect(TWO)
    assert bench.step({ONE: [*b"late"], TWO: [*b"on"]}, drafted=drafted(3, 1)) is not None


def test_a_stop_string_in_the_last_step_needs_no_word_to_the_scheduler() -> None:
    bench = Bench()
    bench.expect(ONE, stop=("b",), include_stop_str_in_output=True)
    texts = bench.said({ONE: [*b"abc", END]}, ends=(End(ONE, "stop", stop_token=END),))
    assert texts.texts == ("ab",)
    assert texts.finishes == (Finish(ONE, "stop", 3, 2, 0, stop_reason="b"),)
    assert bench.scheduler == []


@pytest.mark.parametrize(
    ("sampling", "token", "text", "stop_reason"),
    [
        ({}, END, "a", None),
        ({"skip_special_tokens": False}, END, "a", None),
        ({"include_stop_str_in_output": True}, END, "a", None),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, END, "a<|end|>", None),
        ({"stop_token_ids": (WORD,)}, WORD, "a", WORD),
        ({"stop_token_ids": (WORD,), "include_stop_str_in_output": True}, WORD, "a word", WORD),
        ({"stop_token_ids": (END,)}, END, "a", END),
    ],
)
def test_the_token_that_ends_an_answer_counts_and_is_hidden(
    sampling: dict[str, Any], token: int, text: str, stop_reason: int | None
) -> None:
    bench = Bench()
    bench.expect(ONE, **sampling)
    bench.step({ONE: [*b"a"]})
    texts = bench.said({ONE: [token]}, ends=(End(ONE, "stop", stop_token=token),))
    assert "a" + "".join(texts.texts) == text
    assert texts.token_ids.tolist() == [token]
    assert texts.finishes == (Finish(ONE, "stop", 3, 2, 0, stop_reason=stop_reason),)


def test_each_front_end_hears_of_its_own_requests_in_one_message() -> None:
    bench = Bench(frontends=2)
    for request in (ONE, TWO, FAR):
        bench.expect(request)
    near = bench.said({ONE: [*b"a"], FAR: [*b"b"], TWO: [*b"c"]}, ends=(End(FAR, "length"),))
    assert (near.requests, near.texts, near.finishes) == ((ONE, TWO), ("a", "c"), ())
    (far,) = bench.frontends[1]
    assert (far.requests, far.texts, far.finishes) == ((FAR,), ("b",), (Finish(FAR, "length", 3, 1, 0),))


def test_the_prompt_is_echoed_before_the_first_text_of_any_kind() -> None:
    bench = Bench()
    bench.expect(ONE, echo=packed([BOS, *b"hi", 0xC3]), stop=("h",))
    texts = bench.said({ONE: [0xA9]})
    assert (texts.texts, texts.counts.tolist()) == (("hié",), [1])
    bench.expect(TWO, echo=packed([*b"all"]), max_tokens=0)
    texts = bench.said(ends=(End(TWO, "length"),))
    assert (texts.texts, texts.finishes[0].completion_tokens) == (("all",), 0)


def numbers(texts: Texts) -> tuple[list[float], list[int], list[list[int]]]:
    """Log-probabilities, ranks and alternatives, as they were told."""
    told = texts.logprobs
    assert told is not None
    assert len(told.top_logprobs) == len(texts.token_ids)
    return told.token_logprobs.tolist(), told.ranks.tolist(), told.top_ids.tolist()


def test_logprobs_stay_beside_their_tokens() -> None:
    bench = Bench()
    bench.expect(ONE, logprobs=1)
    bench.expect(TWO)
    texts = bench.said({TWO: [*b"a"], ONE: [WORD, 0xF0]}, logprobs=columns([97, WORD, 0xF0]))
    assert texts.token_ids.tolist() == [97, WORD, 0xF0]
    assert numbers(texts) == ([0.0, -1.0, -2.0], [1, 2, 3], [[65, 66]] * 3)
    assert bench.said({TWO: [*b"a"], ONE: [*b"b"]}).logprobs is None


def test_logprobs_end_with_the_token_that_completed_a_stop_string() -> None:
    bench = Bench()
    bench.expect(ONE, logprobs=0, stop=("ab",))
    bench.expect(TWO, logprobs=0)
    texts = bench.said({TWO: [120], ONE: [*b"abc"]}, logprobs=columns([120, *b"abc"]))
    assert (texts.counts.tolist(), texts.token_ids.tolist()) == ([1, 2], [120, 97, 98])
    assert numbers(texts)[:2] == ([0.0, -1.0, -2.0], [1, 2, 3])
    # The first one is over, though the scheduler does not know it yet.
    texts = bench.said({ONE: [100, 101], TWO: [121]}, logprobs=columns([100, 101, 121]))
    assert (texts.requests, texts.texts, texts.token_ids.tolist()) == ((TWO,), ("y",), [121])
    assert numbers(texts)[:2] == ([-2.0], [3])


def test_logprobs_of_far_requests_go_with_their_tokens() -> None:
    bench = Bench(frontends=2)
    for request in (ONE, FAR):
        bench.expect(request, logprobs=2)
    near = bench.said({FAR: [*b"b"], ONE: [*b"ac"]}, logprobs=columns([*b"bac"]))
    (far,) = bench.frontends[1]
    assert (near.token_ids.tolist(), numbers(near)[0]) == ([*b"ac"], [-1.0, -2.0])
    assert (far.token_ids.tolist(), numbers(far)[0]) == ([*b"b"], [0.0])


def part(start: int, tokens: list[int]) -> PromptLogprobs:
    return PromptLogprobs(0, start, np.array(tokens, dtype=np.int32), columns(tokens))


def test_prompt_logprobs_begin_with_a_token_that_has_none() -> None:
    bench = Bench()
    bench.expect(ONE, echo=packed([*b"abc"]), prompt_logprobs=1)
    texts = bench.said(prompt_logprobs=((ONE, part(1, [*b"bc"])),))
    (_, first), (request, told) = texts.prompt_logprobs
    assert (first.start, first.tokens.tolist(), len(first.logprobs.ranks)) == (0, [97], 0)
    assert (request, told.start, told.tokens.tolist()) == (ONE, 1, [98, 99])
    assert told.logprobs.token_logprobs.tolist() == [0.0, -1.0]


def test_prompt_logprobs_that_are_computed_again_are_told_once() -> None:
    bench = Bench()
    bench.expect(ONE, prompt_logprobs=0)
    told = []
    for start, tokens in ((1, [*b"bc"]), (1, [*b"b"]), (1, [*b"bcd"]), (4, [*b"e"])):
        texts = bench.step(prompt_logprobs=((ONE, part(start, tokens)),))
        if texts is not None:
            told += [id for _, part in texts.prompt_logprobs for id in part.tokens.tolist()]
    assert told == [-1, *b"bcde"]


@given(st.lists(st.tuples(st.integers(1, 19), st.integers(1, 8)), max_size=12))
def test_each_prompt_position_is_told_once_however_often_it_is_computed(pieces: list[tuple[int, int]]) -> None:
    bench = Bench()
    bench.expect(ONE, prompt_logprobs=0)
    told: list[int] = []
    frontier = 1
    for start, count in pieces:
        start = min(start, frontier)  # a recomputation begins at or before what was reached
        end = min(20, start + count)
        frontier = max(frontier, end)
        texts = bench.step(prompt_logprobs=((ONE, part(start, list(range(start, end)))),))
        if texts is not None:
            told += [id for _, part in texts.prompt_logprobs for id in part.tokens.tolist()]
    assert told == [-1, *range(1, frontier)] if pieces else told == []


def test_a_prompt_of_one_token_has_its_one_entry() -> None:
    bench = Bench()
    bench.expect(ONE, prompt_logprobs=1, prompt_tokens=1)
    texts = bench.said({ONE: [*b"a"]})
    assert [part.tokens.tolist() for _, part in texts.prompt_logprobs] == [[-1]]


def test_news_of_unknown_requests_is_ignored() -> None:
    bench = Bench()
    step = {
        "started": (Started(ONE, 1),),
        "ends": (End(ONE, "stop"),),
        "prompt_logprobs": ((ONE, part(1, [97])),),
    }
    assert bench.step({ONE: [*b"a"]}, **step) is None
    assert bench.scheduler == []


def test_an_abort_between_tokens_is_told_beside_a_stop_string_of_another() -> None:
    bench = Bench()
    bench.expect(ONE, stop=("b",))
    bench.expect(TWO, stop=("xyz",))
    bench.step({ONE: [*b"a"], TWO: [*b"xy"]})
    texts = bench.said({ONE: [*b"b"]}, ends=(End(TWO, "abort"),))
    assert (texts.requests, texts.texts, texts.counts.tolist()) == ((ONE, TWO), ("", "xy"), [1, 0])
    assert texts.finishes == (Finish(ONE, "stop", 3, 2, 0, stop_reason="b"), Finish(TWO, "abort", 3, 2, 0))


def test_an_abort_in_a_step_without_tokens_is_told_where_streams_of_several_stop_strings_are_open() -> None:
    bench = Bench()
    requests = [RequestId(number) for number in range(1, 9)]
    for request in requests:
        bench.expect(request, stop=("zz",) if request > 4 else ())
    tokens = {request: [*b"a"] for request in requests}
    bench.step(tokens)
    bench.said(tokens, ends=(End(requests[0], "length"),))
    assert bench.said(ends=(End(requests[1], "abort"),)).finishes == (Finish(requests[1], "abort", 3, 2, 0),)


def test_rows_that_change_from_step_to_step_keep_their_own_texts() -> None:
    dice = random.Random(7)
    bench = Bench()
    heard: dict[RequestId, str] = {}
    fed: dict[RequestId, list[int]] = {}
    for number in range(1, 200):
        if dice.random() < 0.2 or not fed:
            bench.expect(RequestId(number), stop=("zz",) if number % 2 else ())
            fed[RequestId(number)] = []
            heard[RequestId(number)] = ""
        rows = [request for request in fed if dice.random() < 0.9]
        tokens = {request: [dice.choice(b"abyz")] for request in rows}
        texts = bench.step(tokens)
        if texts is None:
            assert not rows
            continue
        for request in rows:
            fed[request] += tokens[request]
        for request, text in zip(texts.requests, texts.texts, strict=True):
            heard[request] += text
        over = {request for request in rows if request % 2 and b"zz" in bytes(fed[request])}
        assert {finish.request for finish in texts.finishes} == over
        for request in over:
            assert heard[request] + "zz" == bytes(fed.pop(request)).decode()
        for request in rows:
            if request in fed and not request % 2:
                assert heard[request] == bytes(fed[request]).decode()


def test_a_message_without_an_arm_is_an_error() -> None:
    with pytest.raises(UnknownMessage):
        Bench().actor.receive("hello")
