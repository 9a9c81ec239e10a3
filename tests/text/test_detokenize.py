"""Streams of text: any cut of the ids gives one text, never half a character, never half a stop string."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.sampling import SamplingParams
from asyncpage.text.byte_alphabet import spell
from asyncpage.text.detokenize import TextStream, TextStreams
from asyncpage.text.pieces import GPT2, WHOLE, Splitting
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.tokenizer import Tokenizer, load_tokenizer
from asyncpage.text.unison import FEW, Unison
from asyncpage.text.vocabulary import AddedToken, Vocabulary

# Bytes whose combinations are whole characters, broken ones and impossible ones.
PIECES = [b"A", b"B", b" one", b" two", b"\xf0\x9f", b"\x98", b"\x80", b"\xc4", b"\x8f", b"\xff", b"\xe0", b"\xed\xa0"]
SPECIAL = len(PIECES)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    tokens = [*map(spell, PIECES), "<|end|>"]
    added = (AddedToken(SPECIAL, "<|end|>"),)
    return Tokenizer(
        Vocabulary("tiny", tokens, lambda: iter(()), added, Splitting(GPT2), bos_id=SPECIAL, prefix_ids=(SPECIAL,))
    )


def opened(tokenizer: Tokenizer, sampling: SamplingParams, echo: Sequence[int] = ()) -> TextStream:
    return TextStreams(tokenizer).open(sampling, echo)


def feed_one_each(streams: Sequence[TextStream], ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """In a unison for this one step."""
    unison = Unison()
    slots = np.array(list(map(unison.join, streams)), dtype=np.intp)
    fed = unison.feed(slots, np.array(ids, dtype=np.int32))
    assert list(map(unison.leave, slots.tolist())) == list(streams)
    return fed


def cut(ids: Sequence[int], dice: random.Random) -> list[list[int]]:
    parts = []
    at = 0
    while at < len(ids):
        length = dice.randint(1, 4)
        parts.append(list(ids[at : at + length]))
        at += length
    return parts


@settings(max_examples=250, deadline=None)
@given(
    ids=st.lists(st.integers(0, SPECIAL), max_size=20),
    seed=st.integers(0, 2**16),
    skip=st.booleans(),
    stop=st.lists(st.sampled_from(["A", "B o", "one t", "😀", "ď", "\ufffd", "AB", "d|>"]), max_size=3, unique=True),
    min_tokens=st.integers(0, 6),
    keeps=st.booleans(),
)
def test_any_cut_of_the_ids_gives_the_text_of_one_shot(
    tiny: Tokenizer, ids: list[int], seed: int, skip: bool, stop: list[str], min_tokens: int, keeps: bool
) -> None:
    sampling = SamplingParams(
        skip_special_tokens=skip, stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=keeps
    )
    whole = opened(tiny, sampling)
    expected = whole.feed(ids) + whole.flush()
    stream = opened(tiny, sampling)
    text = "".join(stream.feed(part) for part in cut(ids, random.Random(seed))) + stream.flush()
    assert text == expected
    assert (stream.tokens, stream.matched) == (whole.tokens, whole.matched)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, SPECIAL), max_size=20), skip=st.booleans())
def test_without_stop_strings_the_text_is_that_of_all_bytes_together(
    tiny: Tokenizer, ids: list[int], skip: bool
) -> None:
    stream = opened(tiny, SamplingParams(skip_special_tokens=skip))
    parts = [stream.feed([id]) for id in ids]
    data = b"".join(b"" if id == SPECIAL and skip else (*PIECES, b"<|end|>")[id] for id in ids)
    assert "".join(parts) + stream.flush() == data.decode("utf-8", "replace")
    assert stream.tokens == len(ids)


def test_a_character_is_sent_when_its_last_byte_has_come(tiny: Tokenizer) -> None:
    stream = opened(tiny, SamplingParams())
    assert [stream.feed([id]) for id in (0, 4, 5, 6, 7, 8, 1)] == ["A", "", "", "😀", "", "ď", "B"]
    assert stream.flush() == ""


def test_only_bytes_that_can_never_complete_become_the_replacement_character(tiny: Tokenizer) -> None:
    stream = opened(tiny, SamplingParams())
    assert [stream.feed([id]) for id in (0, 9, 2, 4)] == ["A", "\ufffd", " one", ""]
    assert stream.flush() == "\ufffd"


def test_a_stop_string_counts_the_tokens_up_to_the_one_that_completed_it(tiny: Tokenizer) -> None:
    stream = opened(tiny, SamplingParams(stop=("one t",)))
    assert stream.feed([0, 2]) == "A "
    assert stream.feed([3, 0, 0]) == ""
    assert (stream.matched, stream.tokens) == ("one t", 3)
    assert stream.feed([0]) == ""
    assert stream.flush() == ""


def test_an_included_stop_string_is_the_end_of_the_text(tiny: Tokenizer) -> None:
    stream = opened(tiny, SamplingParams(stop=(" tw",), include_stop_str_in_output=True))
    assert stream.feed([2]) + stream.feed([3]) == " one tw"


def test_a_stop_string_before_min_tokens_is_only_text(tiny: Tokenizer) -> None:
    stream = opened(tiny, SamplingParams(stop=("A",), min_tokens=3))
    assert [stream.feed([0]) for _ in range(3)] == ["A", "A", ""]
    assert (stream.matched, stream.tokens) == ("A", 3)


def test_a_hidden_last_token_counts_and_shows_nothing(tiny: Tokenizer) -> None:
    for stop in ((), ("zz",)):
        stream = opened(tiny, SamplingParams(stop=stop, skip_special_tokens=False))
        stream.expect_end(hides_last=True)
        assert stream.feed([0, 1]) == "A"
        assert (stream.tokens, stream.is_over) == (2, True)


def test_the_prompt_may_end_inside_a_character(tiny: Tokenizer) -> None:
    # The model's own first token is left out, one in the middle was written there.
    stream = opened(tiny, SamplingParams(stop=("A",)), [SPECIAL, 0, SPECIAL, 4])
    assert stream.feed([5]) == "A<|end|>"
    assert stream.feed([6]) == "😀"
    assert opened(tiny, SamplingParams(), [0, 4]).flush() == "A\ufffd"


def test_an_echoed_prompt_is_without_the_space_that_its_vocabulary_puts_in_front() -> None:
    tokens = ["<s>", "▁one", "▁two", "<0xC4>", "<0x8F>"]
    rules = SentencePieceRules(prefix="always", drops_first_space=True)
    vocabulary = Vocabulary(
        *("sentences", tokens, lambda: iter(()), (AddedToken(0, "<s>"),), Splitting(WHOLE)),
        bos_id=0,
        prefix_ids=(0,),
        sentence_pieces=rules,
    )
    mine = Tokenizer(vocabulary)
    # A space that the answer begins with parts it from the prompt.
    assert opened(mine, SamplingParams(), [0, 1]).feed([2, 3, 4]) == "one two\u010f"
    assert opened(mine, SamplingParams()).feed([2, 3]) == " two"
    assert mine.decode([0, 1, 2, 3, 4]) == "one two\u010f"
    assert mine.whole_text(b" one") == "one"


@settings(max_examples=250, deadline=None)
@given(
    answers=st.lists(st.lists(st.integers(0, SPECIAL + 1), max_size=12), max_size=6),
    stop=st.lists(st.sampled_from(["A", "one t", "😀", "AB", " two", "oA"]), max_size=3, unique=True),
    min_tokens=st.integers(0, 4),
    keeps=st.booleans(),
    echo=st.lists(st.integers(0, SPECIAL), max_size=3),
    hides=st.booleans(),
)
def test_feeding_one_each_ends_where_feeding_alone_ends(
    tiny: Tokenizer,
    answers: list[list[int]],
    stop: list[str],
    min_tokens: int,
    keeps: bool,
    echo: list[int],
    hides: bool,
) -> None:
    sampling = SamplingParams(stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=keeps)
    streams = TextStreams(tiny)  # what one answer learns of a token, the next ones use
    for ids in answers:
        alone = opened(tiny, sampling, echo)
        alone.expect_end(hides_last=hides)
        expected = alone.feed(ids)
        together, text = streams.open(sampling, echo), ""
        for place, id in enumerate(ids, 1):
            if place == len(ids):
                together.expect_end(hides_last=hides)
            (new,), over = feed_one_each([together], [id])
            text += new
            assert over == ([0] if together.matched is not None or place == len(ids) else [])
            if over:
                break
        else:
            together.expect_end(hides_last=hides)
            text += together.feed(())
        assert (text, together.matched, together.tokens) == (expected, alone.matched, alone.tokens)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(0, SPECIAL + 1), min_size=4, max_size=4), max_size=12),
    warm=st.integers(0, 4),
    stops=st.tuples(*[st.sampled_from([(), ("A",), ("one t", "😀"), ("AB",)])] * 4),
    skips=st.tuples(*[st.booleans()] * 4),
    min_tokens=st.integers(0, 5),
)
def test_a_unison_gives_what_its_streams_would_give_alone(
    tiny: Tokenizer,
    steps: list[list[int]],
    warm: int,
    stops: tuple[tuple[str, ...], ...],
    skips: tuple[bool, ...],
    min_tokens: int,
) -> None:
    opener = TextStreams(tiny)
    samplings = [
        SamplingParams(stop=stop, skip_special_tokens=skip, min_tokens=min_tokens)
        for stop, skip in zip(stops, skips, strict=True)
    ]
    alone = [opened(tiny, sampling) for sampling in samplings]
    together = [opener.open(sampling) for sampling in samplings]
    unison, slots = None, np.empty(0, dtype=np.intp)
    for number, ids in enumerate(steps):
        expected = [stream.feed([id]) for stream, id in zip(alone, ids, strict=True)]
        if unison is None and number >= warm:
            unison = Unison()
            slots = np.array(list(map(unison.join, together)), dtype=np.intp)
        if unison is None:
            texts, over = feed_one_each(together, ids)
        else:
            texts, over = unison.feed(slots, np.array(ids, dtype=np.int32))
        assert texts == expected
        assert over == [at for at, stream in enumerate(alone) if stream.matched is not None]
        if over:
            break
    if unison is not None:
        assert list(map(unison.leave, slots.tolist())) == together
    assert [(stream.tokens, stream.matched) for stream in together] == [(s.tokens, s.matched) for s in alone]
    assert [stream.flush() for stream in together] == [stream.flush() for stream in alone]


def test_one_token_for_each_of_many_streams_is_the_same_as_one_by_one(demo_model: Path) -> None:
    demo = load_tokenizer(demo_model)
    dice = random.Random(2)
    # Some wait for a string that never comes: the text must be the same.
    opener = TextStreams(demo)
    streams = [opener.open(SamplingParams(stop=("\x00 never",) if at % 2 else ())) for at in range(20)]
    texts = [""] * 20
    ids: list[list[int]] = [[] for _ in range(20)]
    for _ in range(50):
        new = [dice.randrange(demo.vocab_size + 5) for _ in range(20)]
        for at, text in enumerate(feed_one_each(streams, new)[0]):
            texts[at] += text
            ids[at].append(new[at])
    for stream, text, own in zip(streams, texts, ids, strict=True):
        assert text + stream.flush() == demo.decode(own)
        assert stream.tokens == 50


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), kinds=st.integers(1, 4), most=st.sampled_from([3, 40 * FEW]))
def test_streams_that_come_and_go_give_what_they_would_give_alone(
    tiny: Tokenizer, seed: int, kinds: int, most: int
) -> None:
    dice = random.Random(seed)
    opener, unison = TextStreams(tiny), Unison()
    samplings = [
        SamplingParams(stop=stop, min_tokens=dice.randrange(4))
        for stop in ((), ("A",), ("one t", "😀"), ("AB",))[:kinds]
    ]
    living: dict[int, tuple[TextStream, TextStream]] = {}  # by slot: the same in the unison and alone
    for _ in range(12):
        while len(living) < most and dice.random() < 0.9:
            sampling = dice.choice(samplings)
            together = opener.open(sampling)
            living[unison.join(together)] = (together, opened(tiny, sampling))
        asked = [slot for slot in living if dice.random() < 0.8]
        ids = [dice.randrange(SPECIAL + 2) for _ in asked]
        for slot in asked:
            if dice.random() < 0.1:
                hides = dice.random() < 0.5
                unison.expect_end(slot, hides_last=hides)
                living[slot][1].expect_end(hides_last=hides)
        expected = [living[slot][1].feed([id]) for slot, id in zip(asked, ids, strict=True)]
        for _ in range(dice.randrange(3)):  # what is seen of a stream between feedings changes nothing
            unison.leave(unison.join(opener.open(samplings[0])))
        texts, over = unison.feed(np.array(asked, dtype=np.intp), np.array(ids, dtype=np.int32))
        assert texts == expected
        assert over == [at for at, slot in enumerate(asked) if living[slot][1].is_over]
        gone = [asked[at] for at in over] + [slot for slot in living if slot not in asked and dice.random() < 0.1]
        for slot in gone:
            together, alone = living.pop(slot)
            assert unison.leave(slot) is together
            assert (together.tokens, together.matched) == (alone.tokens, alone.matched)
            assert together.flush() == alone.flush()
        for slot, (_, alone) in living.items():
            if dice.random() < 0.1:
                some = [dice.randrange(SPECIAL + 2) for _ in range(dice.randrange(4))]
                before = alone.tokens
                assert unison.feed_some(slot, some) == (alone.feed(some), alone.tokens - before, alone.is_over)
        for slot in [slot for slot, (_, alone) in living.items() if alone.is_over]:
            living.pop(slot)
            unison.leave(slot)
