"""One expression for many texts: what it finds is what trying them one by one, the longest first, finds."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.alternatives import any_of

TEXTS = st.lists(st.text("ab.|▁\n", min_size=1, max_size=5), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(texts=TEXTS, text=st.text("ab.|▁\n", max_size=40))
def test_it_finds_the_longest_of_the_texts_at_each_place(texts: list[str], text: str) -> None:
    plain = "|".join(re.escape(one) for one in sorted(texts, key=len, reverse=True))
    assert re.findall(any_of(texts), text) == re.findall(plain, text)


def test_thousands_of_texts_with_long_common_beginnings_are_one_small_search() -> None:
    texts = [f"<unused{number}>" for number in range(6000)] + ["\n" * length for length in range(2, 32)]
    pattern = re.compile(any_of(texts))
    assert [pattern.fullmatch(text) is not None for text in (*texts, "<unused6000>", "\n")] == [True] * 6030 + [
        False
    ] * 2
