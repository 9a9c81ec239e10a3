"""Added tokens with every flag, against the reference library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.tokenizer import Tokenizer, load_tokenizer

ADDED = [
    {"content": "<s>", "special": True},
    {"content": "<l>", "special": True, "lstrip": True},
    {"content": "<r>", "special": True, "rstrip": True},
    {"content": "<lr>", "special": True, "lstrip": True, "rstrip": True},
    {"content": "word", "special": False, "single_word": True},
    {"content": "<n>", "special": False, "normalized": True},
    {"content": "caf\u00e9", "special": False, "normalized": True},
    {"content": "<s><s>", "special": True},
    {"content": " gap ", "special": False},
]


@pytest.fixture(scope="module")
def pair(
    small_json: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    folder = tmp_path_factory.mktemp("added")
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    first = max(small_json["model"]["vocab"].values()) + 1
    added = [{**flags, **token, "id": first - 1 + number} for number, token in enumerate(ADDED)]
    added[0]["id"] = small_json["model"]["vocab"]["<s>"]
    root = {**small_json, "added_tokens": added, "normalizer": {"type": "NFC"}}
    (folder / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    return load_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


PARTS = st.sampled_from(
    [
        *(str(token["content"]) for token in ADDED),
        "cafe\u0301",
        " ",
        "  ",
        "\n",
        "\u3000",
        "\x1c",
        "a",
        "_",
        "é",
        "-",
        "1",
        *("<", "s>", "w", "ord", "gap", "\u0301"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(PARTS, max_size=12))
def test_added_tokens_are_found_as_the_reference_finds_them(
    pair: tuple[Tokenizer, tokenizers.Tokenizer], parts: list[str]
) -> None:
    mine, oracle = pair
    text = "".join(parts)
    assert mine.encode(text) == oracle.encode(text).ids


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(PARTS, max_size=12))
def test_control_tokens_may_be_left_as_text_while_others_are_found(
    pair: tuple[Tokenizer, tokenizers.Tokenizer], parts: list[str]
) -> None:
    mine, oracle = pair
    text = "".join(parts)
    oracle.encode_special_tokens = True
    try:
        assert mine.encode(text, parse_special=False) == oracle.encode(text).ids
    finally:
        oracle.encode_special_tokens = False


def test_special_tokens_named_by_the_configuration_alone_are_control_tokens(
    model_folder: Callable[..., Path], small_json: dict[str, Any]
) -> None:
    folder = model_folder(
        {"added_tokens": []},
        tokenizer_config={"eos_token": {"content": "</s>"}, "additional_special_tokens": ["<s>", "<absent>"]},
    )
    mine = load_tokenizer(folder)
    vocab = small_json["model"]["vocab"]
    assert mine.special_ids == {vocab["<s>"], vocab["</s>"]}
    assert mine.eos_ids == (vocab["</s>"],)
    assert mine.encode("<s></s>") == [vocab["<s>"], vocab["</s>"]]
