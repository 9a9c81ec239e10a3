"""A vocabulary made in memory: what its words are and how they are found."""

import pytest

from asyncpage.errors import UsageError
from asyncpage.text.artificial_vocabulary import END_TEXT, WORDS_FROM, artificial_vocabulary
from asyncpage.text.tokenizer import Tokenizer


def test_every_word_is_a_token_of_its_own_and_only_the_last_token_ends() -> None:
    tokenizer = Tokenizer(artificial_vocabulary(1024))
    assert tokenizer.vocab_size == 1024
    assert tokenizer.eos_ids == (1023,)
    words = [tokenizer.decode([id]) for id in range(WORDS_FROM, 1023)]
    assert len(set(words)) == len(words)
    assert all(word.startswith(" ") and word[1:].isalpha() for word in words)
    assert tokenizer.encode("".join(words)) == list(range(WORDS_FROM, 1023))


def test_any_text_can_be_encoded_and_comes_back() -> None:
    tokenizer = Tokenizer(artificial_vocabulary(300))
    for text in ("The end.", "héllo wörld ✓", "\x00\n tab\t", "東京"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(END_TEXT) == [299]


@pytest.mark.parametrize("size", [0, 257, 256 + 1 + 26 + 26**2 + 26**3 + 1])
def test_a_size_that_cannot_be_made_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="258 to"):
        artificial_vocabulary(size)
