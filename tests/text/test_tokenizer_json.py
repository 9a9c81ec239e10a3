"""What a tokenizer.json may ask for: the same ids as the reference library, or a refusal that names the part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from asyncpage.errors import FormatError, ModelError
from asyncpage.text import pieces
from asyncpage.text.tokenizer import load_tokenizer

WriteFolder = Callable[..., Path]
TEXT = "  The quick  brown\tfox's 1234 jumps\n\n over é 你好 ...  <s>in</s> \n end "


def expect_reference_ids(folder: Path, text: str = TEXT) -> None:
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    mine = load_tokenizer(folder)
    assert mine.encode(text) == oracle.encode(text).ids
    assert mine.encode(text, add_special=False) == oracle.encode(text, add_special_tokens=False).ids


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(**options: Any) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **options}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


@pytest.mark.parametrize(
    "part",
    [
        byte_level(),
        byte_level(add_prefix_space=True),
        byte_level(use_regex=False),
        byte_level(use_regex=False, add_prefix_space=True),
        sequence({"type": "Digits", "individual_digits": True}, byte_level()),
        sequence(split(pieces.LLAMA3), byte_level(use_regex=False)),
        sequence(split(pieces.QWEN2), byte_level(use_regex=False)),
        sequence(split(pieces.GPT2), byte_level(use_regex=False)),
        sequence(split(pieces.TEKKEN), byte_level(use_regex=False)),
        sequence({**split(pieces.O200K), "behavior": "Removed", "invert": True}, byte_level(use_regex=False)),
        sequence(*map(split, pieces.DEEPSEEK_V3), byte_level(use_regex=False)),
        sequence(
            *map(split, pieces.DEEPSEEK_LLM[:-1]),
            {"type": "Digits", "individual_digits": True},
            byte_level(use_regex=False),
        ),
        sequence(split(pieces.LLAMA3), byte_level(use_regex=True)),
        sequence({"type": "Digits", "individual_digits": False}, byte_level()),
        sequence({"type": "Digits", "individual_digits": True}, byte_level(use_regex=False)),
    ],
)
def test_every_supported_pre_tokenizer_gives_the_reference_ids(model_folder: WriteFolder, part: dict[str, Any]) -> None:
    expect_reference_ids(model_folder({"pre_tokenizer": part}))


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}},
        {"pre_tokenizer": sequence(split(r"\w+|\W+"), byte_level(use_regex=False))},
        {"pre_tokenizer": sequence(split(pieces.DIGIT), byte_level(use_regex=False))},
        {"pre_tokenizer": sequence({**split(pieces.DEEPSEEK_V3[0]), "behavior": "Removed"}, byte_level())},
        {"pre_tokenizer": sequence({**split(pieces.DEEPSEEK_V3[0]), "invert": True}, byte_level())},
        {"pre_tokenizer": sequence(split(pieces.LLAMA3), byte_level(use_regex=False, add_prefix_space=True))},
        {"pre_tokenizer": sequence({"type": "Punctuation"}, byte_level())},
        {"pre_tokenizer": sequence(sequence(byte_level()))},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
        {"post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}},
        {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
    ],
)
def test_an_unknown_part_is_refused_by_name(model_folder: WriteFolder, changes: dict[str, Any]) -> None:
    ((name, value),) = changes.items()
    with pytest.raises(ModelError, match=rf"{name}.*is not supported; supported is"):
        load_tokenizer(model_folder(changes))
    assert value is None or value["type"]


@pytest.mark.parametrize(
    "option",
    [
        {"type": "Unigram"},
        {"type": "WordLevel"},
        {"byte_fallback": True},
        {"dropout": 0.1},
        {"end_of_word_suffix": "</w>"},
        {"continuing_subword_prefix": "##"},
    ],
)
def test_an_unknown_model_or_option_is_refused_by_name(
    model_folder: WriteFolder, small_json: dict[str, Any], option: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match="is not supported"):
        load_tokenizer(model_folder({"model": {**small_json["model"], **option}}))


def test_merges_may_be_strings_or_pairs(model_folder: WriteFolder, small_json: dict[str, Any]) -> None:
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in small_json["model"]["merges"]]
    for merges in (pairs, [" ".join(pair) for pair in pairs]):
        expect_reference_ids(model_folder({"model": {**small_json["model"], "merges": merges}}))


def test_ignoring_merges_takes_a_whole_piece_that_is_a_token(
    model_folder: WriteFolder, small_json: dict[str, Any]
) -> None:
    model = small_json["model"]
    vocab = {**model["vocab"], "Ġbrown": len(model["vocab"]), "Ġ" + "x" * 60: len(model["vocab"]) + 1}
    for ignore in (True, False):
        folder = model_folder({"model": {**model, "vocab": vocab, "ignore_merges": ignore}})
        expect_reference_ids(folder, "a brown xx" + "x" * 60 + " " + "x" * 60)
        assert (len(model["vocab"]) in load_tokenizer(folder).encode("a brown fox")) is ignore


@pytest.mark.parametrize("fuse", [False, True])
def test_unknown_bytes_become_the_unknown_token(
    model_folder: WriteFolder, small_json: dict[str, Any], fuse: bool
) -> None:
    model = small_json["model"]
    lost = {"Ã", "©", "ä"}
    vocab = {token: id for token, id in model["vocab"].items() if not lost.intersection(token)}
    merges = [m for m in model["merges"] if not lost.intersection("".join(m))]
    changed = {**model, "vocab": vocab, "merges": merges, "unk_token": "<s>", "fuse_unk": fuse}
    expect_reference_ids(model_folder({"model": changed}), "é caféé 你 x")


def test_nfc_is_applied_where_asked(model_folder: WriteFolder) -> None:
    for normalizer in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}):
        expect_reference_ids(model_folder({"normalizer": normalizer}), "cafe\u0301 \u1100\u1161\u11a8 \u2126")


def test_the_post_processor_puts_ids_around_a_text(model_folder: WriteFolder) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]},
        },
    }
    both = {"type": "Sequence", "processors": [byte_level(), template]}
    for processor in (template, both):
        folder = model_folder({"post_processor": processor}, tokenizer_config={"bos_token": "<s>"})
        expect_reference_ids(folder)
        assert load_tokenizer(folder).add_bos


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 7},
        {"model": {"type": "BPE", "vocab": [], "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 10**9}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}, "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a"]}},
        {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [["a", 3]]}},
        {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": {}}},
        {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [], "unk_token": "?"}},
        {"added_tokens": [{"id": "x", "content": "y"}]},
        {"added_tokens": [{"id": 10**12, "content": "y"}]},
        {"added_tokens": 3},
        {"pre_tokenizer": {"type": 3}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?"}}]}},
    ],
)
def test_a_malformed_file_is_refused_naming_the_place(model_folder: WriteFolder, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json: "):
        load_tokenizer(model_folder(changes))


def test_a_merge_of_unknown_tokens_is_refused(model_folder: WriteFolder, small_json: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"needs the token '~nopea?'"):
        load_tokenizer(model_folder({"model": {**small_json["model"], "merges": ["~nope a"]}}))


def test_text_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * 5000)
    with pytest.raises(FormatError):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps([1]))
    with pytest.raises(FormatError):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"\.gguf file or from a folder"):
        load_tokenizer(tmp_path / "model.bin")
