"""The published patterns, cut by us and by the reference library."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers import pre_tokenizers as reference

from asyncpage.text import pieces
from asyncpage.text.pieces import Splitting
from asyncpage.text.pre_tokenizers import PRE_TOKENIZERS

TEXT = st.lists(
    st.one_of(
        st.sampled_from(" \t\n\r\u00a0\u2028\u3000'1٣a²ǅʰé\u0301한中の、。！？“’/_\x00\x1c\x85\u200b😀"),
        st.sampled_from(["'s", "'LL", "  ", "\r\n", "123456", "Hello", "HTTPServer", "ünï", "日本語", "<|"]),
        st.characters(max_codepoint=0x2FF),
    ),
    max_size=30,
).map("".join)

PUBLISHED = {
    "deepseek-v3": "bfb6cd412a9c963802031abb98b11ebe08dfcc4b1d41396a1e9a3be2d1f2b880",
    "gpt-4o": "2d1b8dc11e89af71459b36004f698ab3693f59fd84f63e8ec2b49564ab857420",
    "tekken": "1d64a9a8eaf9f1bd80331984d81fdd514e7feafe8df83a525dd31472f275699a",
}
"""SHA-256 of the patterns in the tokenizer.json that each name stands for, NUL between them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pattern_is_the_published_one_to_the_letter(name: str) -> None:
    kind = PRE_TOKENIZERS[name]
    found = "\0".join((*kind.earlier, kind.pattern))
    assert sha256(found.encode()).hexdigest() == PUBLISHED[name]


def cut_by_reference(patterns: tuple[str, ...], text: str) -> list[str]:
    steps = [
        reference.Digits(individual_digits=True)
        if pattern == pieces.DIGIT and at
        else reference.Split(Regex(pattern), "isolated")
        for at, pattern in enumerate(patterns)
    ]
    return [piece for piece, _ in reference.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", ["qwen2", "llama3", "dbrx", "tekken", "gpt-4o", "deepseek-llm", "deepseek-v3", "olmo"])
def test_a_named_pre_tokenizer_cuts_as_the_reference_does(name: str) -> None:
    kind = PRE_TOKENIZERS[name]
    cut = Splitting(kind.pattern, earlier=kind.earlier).cutter()

    @settings(max_examples=100, deadline=None)
    @given(text=TEXT)
    def compare(text: str) -> None:
        assert list(cut(text)) == cut_by_reference((*kind.earlier, kind.pattern), text)

    compare()


def test_white_space_without_an_end_is_gone_through_once() -> None:
    cut = Splitting(pieces.DEEPSEEK_LLM[-1], earlier=pieces.DEEPSEEK_LLM[:-1]).cutter()
    # Were the search begun anew at each space, this would take minutes.
    assert "".join(cut(" " * 200_000 + "\u0301")) == " " * 200_000 + "\u0301"
