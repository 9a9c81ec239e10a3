"""WordPiece against the `tokenizers` library on the real vocabulary, and the published rules on small ones."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Oracle
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from asyncpage.errors import FormatError, ModelError, RequestError
from asyncpage.text.tokenizer import Tokenizer, load_tokenizer
from asyncpage.text.wordpiece import PATTERN, WordPieceRules

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "aff",
    "a",
    "##b",
    "é",
    "e",
    "!",
    "中",
    "Un",
    "##ő",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lowercase": False},
    {"lowercase": False, "strip_accents": True},
    {"strip_accents": False},
    {"clean_text": False},
    {"handle_chinese_chars": False},
]


@pytest.fixture(scope="module")
def tokenizer(embedding_model: Path) -> Tokenizer:
    return load_tokenizer(embedding_model)


@pytest.fixture(scope="module")
def oracle(embedding_model: Path) -> Oracle:
    made = Oracle.from_file(str(embedding_model / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


@pytest.fixture(scope="module")
def from_text(embedding_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same vocabulary, from `vocab.txt`."""
    folder = tmp_path_factory.mktemp("vocab")
    for name in ("vocab.txt", "tokenizer_config.json", "config.json"):
        shutil.copy(embedding_model / name, folder)
    return load_tokenizer(folder)


# Since Unicode 3.2 few characters have come that decompose, and a library of another version may not know the last.
NEWLY_PARTED = "".join(
    character
    for character in map(chr, range(0x110000))
    if unicodedata.decomposition(character) and not unicodedata.ucd_3_2_0.decomposition(character)
)
# Characters that this Python does not know yet may have a lower case in a newer library.
KNOWN = st.characters(exclude_categories=("Cs", "Cn"), exclude_characters=NEWLY_PARTED)
SPICE = st.sampled_from(
    ["[CLS]", "[SEP]", "[MASK]", "##ing", "ǅ", "İ", "ΑΣ", "ﬁ", "e\u0301", "\u00ad", "\u200b", "中文", "𫤠", "\x00"]
)
TEXTS = st.lists(st.one_of(st.text(KNOWN, max_size=12), SPICE, st.sampled_from("abc AÉß.,-_…\t\n")), max_size=12)


@settings(max_examples=250, deadline=None)
@given(parts=TEXTS)
def test_ids_are_the_librarys_on_any_text_from_either_file(
    tokenizer: Tokenizer, from_text: Tokenizer, oracle: Oracle, parts: list[str]
) -> None:
    text = "".join(parts)
    expected = oracle.encode(text).ids
    assert tokenizer.encode(text) == expected
    assert from_text.encode(text) == expected


@pytest.mark.parametrize("kind", ["english", "code", "multilingual", "cjk"])
def test_ids_are_the_librarys_on_long_texts(
    tokenizer: Tokenizer, oracle: Oracle, texts: Mapping[str, str], kind: str
) -> None:
    text = texts[kind][:25_000]
    assert tokenizer.encode(text) == oracle.encode(text).ids


@pytest.mark.parametrize("options", [{}, {"lowercase": False, "clean_text": False}], ids=str)
def test_every_character_is_normalised_and_cut_as_the_library_does_it(options: dict[str, Any]) -> None:
    """Each in the middle of a word."""
    normalizer, cutter = normalizers.BertNormalizer(**options), pre_tokenizers.BertPreTokenizer()
    lowers = options.get("lowercase", True)
    rules = WordPieceRules(
        unknown_id=0,
        is_cleaned=options.get("clean_text", True),
        parts_ideographs=options.get("handle_chinese_chars", True),
        strips_accents=options.get("strip_accents", lowers),
        lowers=lowers,
    )
    find = regex.compile(PATTERN).findall
    characters = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")]
    characters = [character for character in characters if character not in NEWLY_PARTED]
    for start in range(0, len(characters), 4096):
        text = " ".join(f"a{character}b" for character in characters[start : start + 4096])
        expected = [piece for piece, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text))]
        assert find(rules.normalize(text)) == expected


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a small vocabulary, with options of the normaliser and changed parts of the file."""

    def write(options: Mapping[str, Any] | None = None, **changes: Any) -> Path:
        made = small(options or {})
        found = json.loads(made.to_str())
        for name, value in changes.items():
            part, _, key = name.partition("__")
            if key:
                found[part][key] = value
            else:
                found[part] = value
        (tmp_path / "tokenizer.json").write_text(json.dumps(found))
        return tmp_path

    return write


def small(options: Mapping[str, Any]) -> Oracle:
    made = Oracle(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(WORDS[:4])
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "text", ["Unaffable aff", "ÉabÉ ab!ab", "a中b", "a\u0000b\tab", "unő unaffő", "[CLS] a[SEP]a", ""]
)
def test_a_small_vocabulary_is_the_librarys_under_every_option(
    write: Callable[..., Path], options: dict[str, Any], text: str
) -> None:
    assert load_tokenizer(write(options)).encode(text) == small(options).encode(text).ids


def test_a_word_without_its_pieces_or_beyond_the_longest_is_one_unknown_token(write: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(write())
    assert tokenizer.encode("unx una", add_special=False) == [1, 1]
    assert tokenizer.encode("a" + "b" * 99, add_special=False) == [8, *[9] * 99]
    assert tokenizer.encode("a" + "b" * 100, add_special=False) == [1]


def test_ids_become_text_again_word_by_word(write: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(write())
    assert tokenizer.decode(tokenizer.encode("unaffable a")) == "unaffable a"
    assert tokenizer.token_text(5) == "aff"


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D800"):
        tokenizer.encode("a \ud800 b")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer 'NFC' is not supported"),
        ({"normalizer": None}, "normalizer None"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer 'Whitespace'"),
        ({"decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}, "decoder 'ByteLevel'"),
        ({"model__type": "Unigram"}, "model 'Unigram'"),
    ],
    ids=str,
)
def test_a_part_that_would_change_the_ids_is_refused_by_name(
    write: Callable[..., Path], changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ModelError, match=match):
        load_tokenizer(write(**changes))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"model__unk_token": "[NONE]"}, "model.unk_token"),
        ({"model__continuing_subword_prefix": ""}, "model.continuing_subword_prefix"),
        ({"model__max_input_chars_per_word": 10**9}, "model.max_input_chars_per_word"),
        ({"post_processor": {"type": "BertProcessing", "sep": ["[SEP]"], "cls": ["[CLS]", 2]}}, "post_processor.sep"),
    ],
    ids=str,
)
def test_a_malformed_part_is_named(write: Callable[..., Path], changes: dict[str, Any], where: str) -> None:
    with pytest.raises(FormatError, match=where):
        load_tokenizer(write(**changes))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"tokenizer_class": "EsmTokenizer"}, "'EsmTokenizer' is read from a tokenizer.json"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"never_split": ["a"]}, "never_split"),
    ],
    ids=str,
)
def test_a_plain_vocabulary_of_another_kind_is_refused(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=match):
        load_tokenizer(tmp_path)


def test_a_plain_vocabulary_needs_the_tokens_that_stand_around_a_text(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\na\n")
    with pytest.raises(FormatError, match=r"sep_token: '\[SEP\]' is not among its 3 tokens"):
        load_tokenizer(tmp_path)


def test_options_beside_a_plain_vocabulary_count(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    config = {"do_lower_case": False, "unk_token": {"content": "[UNK]"}, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).encode("Un é a") == [2, 14, 10, 8, 3]
