"""What a tokenizer.json of SentencePiece's kind may ask for: the reference library's ids, or a refusal by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from asyncpage.errors import FormatError, ModelError
from asyncpage.text.tokenizer import load_tokenizer

WriteFolder = Callable[..., Path]

SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
TEXTS = ["", " ", "  ", "a", " a ", "\n", "▁ a", "😀", "<s>", "<s>a", "x<s> b</s>\n", " <s> ", "The end  of\tit é 你"]


def metaspace(**options: Any) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False, **options}


def decoder(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"decoder": {"type": "Sequence", "decoders": list(parts)}}


def normalizer(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(parts)}}


@pytest.fixture
def write(model_folder: WriteFolder, sentence_json: dict[str, Any]) -> WriteFolder:
    return lambda changes=None, **files: model_folder({**sentence_json, **(changes or {})}, **files)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalizer": SPACES},
        {"normalizer": SPACES, "pre_tokenizer": AT_SPACES},
        {"normalizer": SPACES, "pre_tokenizer": metaspace()},
        {"normalizer": None, "pre_tokenizer": metaspace()},
        {"normalizer": None, "pre_tokenizer": metaspace(split=True)},
        {"normalizer": None, "pre_tokenizer": metaspace(prepend_scheme="first")},
        {"normalizer": None, "pre_tokenizer": metaspace(prepend_scheme="first", split=True)},
        {"normalizer": None, "pre_tokenizer": metaspace(prepend_scheme="never", add_prefix_space=False)},
        {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}},
    ],
)
def test_every_supported_layout_gives_the_reference_ids_and_texts(write: WriteFolder, changes: dict[str, Any]) -> None:
    folder = write(changes)
    mine = load_tokenizer(folder)
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        ids = oracle.encode(text).ids
        assert mine.encode(text) == ids
        for skip in (False, True):
            assert mine.decode(ids, skip_special=skip) == oracle.decode(ids, skip_special_tokens=skip)


def test_a_control_token_that_is_looked_for_in_normalised_text_takes_the_space_in_front(
    write: WriteFolder, sentence_json: dict[str, Any]
) -> None:
    added = [{**token, "normalized": True} for token in sentence_json["added_tokens"]]
    folder = write({"added_tokens": added})
    mine = load_tokenizer(folder)
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert mine.encode(text) == oracle.encode(text).ids


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": None},
        normalizer(PREPEND),
        normalizer(SPACES, PREPEND),
        normalizer({**PREPEND, "prepend": "_"}, SPACES),
        normalizer(PREPEND, {**SPACES, "content": "_"}),
        normalizer(PREPEND, {**SPACES, "pattern": {"Regex": " "}}),
        normalizer({"type": "NFKC"}, SPACES),
        {"pre_tokenizer": metaspace()},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": None, "pre_tokenizer": metaspace(replacement="_")},
        {"normalizer": None, "pre_tokenizer": metaspace(prepend_scheme="last")},
        {"normalizer": None, "pre_tokenizer": metaspace(prepend_scheme=["first"])},
        {"normalizer": None, "pre_tokenizer": AT_SPACES},
        {"normalizer": SPACES, "pre_tokenizer": {**AT_SPACES, "pattern": {"String": "▁"}}},
        {"normalizer": SPACES, "pre_tokenizer": {**AT_SPACES, "invert": True}},
        {"decoder": None},
        {"decoder": metaspace()},
        decoder(BACK, {"type": "Fuse"}),
        decoder(BACK, {"type": "ByteFallback"}),
        decoder({"type": "ByteFallback"}, BACK, {"type": "Fuse"}),
        decoder(BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, {**STRIP, "start": 2}),
        decoder(BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, {**STRIP, "stop": 1}),
    ],
)
def test_another_layout_is_refused_by_name(write: WriteFolder, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"(normalizer|pre_tokenizer|decoder).*is not supported; supported is"):
        load_tokenizer(write(changes))


def test_a_normalised_added_token_with_a_space_is_refused(write: WriteFolder, sentence_json: dict[str, Any]) -> None:
    for text in ("<a b>", "<a▁b>"):
        token = {**sentence_json["added_tokens"][0], "id": 10**4, "content": text, "normalized": True}
        with pytest.raises(ModelError, match=r"normalized added token with a space"):
            load_tokenizer(write({"added_tokens": [token]}))


def test_a_contradiction_about_the_space_in_front_is_refused(write: WriteFolder) -> None:
    for changes, told in (({}, False), ({"normalizer": SPACES}, True)):
        with pytest.raises(ModelError, match=r"add_prefix_space is (True|False), and .*tokenizer\.json says otherwise"):
            load_tokenizer(write(changes, tokenizer_config={"add_prefix_space": told}))
        assert load_tokenizer(write(changes, tokenizer_config={"add_prefix_space": not told})).vocab_size
    with pytest.raises(FormatError, match="prepend_scheme"):
        load_tokenizer(write({"normalizer": None, "pre_tokenizer": metaspace(add_prefix_space=False)}))


def test_a_guard_between_control_tokens_leaves_no_space(write: WriteFolder) -> None:
    mine = load_tokenizer(write())
    for guarded in ("<s>\ufdd0</s>", "\ufdd0<s>\ufdd0 a", "a<\ufdd0s>b", "<s>\ufdd0a\ufdd0</s>"):
        plain = guarded.replace("\ufdd0", "")
        is_whole = "<s>" in guarded
        assert mine.encode(guarded, guard="\ufdd0") == mine.encode(plain, parse_special=is_whole)


def test_a_text_that_goes_on_with_another_gets_no_space_in_front(write: WriteFolder) -> None:
    layouts: list[dict[str, Any]] = [{}, {"normalizer": None, "pre_tokenizer": metaspace()}]
    for changes in layouts:
        mine = load_tokenizer(write(changes))
        bare = load_tokenizer(write({"normalizer": SPACES}))
        for text in ("the", " the", "é<s>"):
            slices = mine.encode_slices(text, add_special=False, continues=True, slice_s=1.0, now=float)
            with pytest.raises(StopIteration) as end:
                next(slices)
            expected = bare.encode(text, add_special=False)
            assert end.value.value == expected


def test_the_file_is_as_the_reference_library_writes_it(sentence_json: dict[str, Any]) -> None:
    again = json.loads(tokenizers.Tokenizer.from_str(json.dumps(sentence_json)).to_str())
    assert [again[key] for key in ("normalizer", "decoder")] == [
        sentence_json[key] for key in ("normalizer", "decoder")
    ]
