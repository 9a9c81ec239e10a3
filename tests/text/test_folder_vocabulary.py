"""What the files beside tokenizer.json say about ends, beginnings and templates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpage.errors import FormatError
from asyncpage.text.tokenizer import load_tokenizer
from asyncpage.text.vocabulary_source import load_vocabulary

WriteFolder = Callable[..., Path]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 5}}, (5,)),
        ({"config": {"eos_token_id": 5}, "generation_config": {"eos_token_id": [7, 6]}}, (6, 7)),
        ({"generation_config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "</s>"}}, (1, 7)),
        ({"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": "</s>"}}, (1,)),
    ],
)
def test_end_ids_come_from_generation_config_else_config_and_the_tokenizer(
    model_folder: WriteFolder, files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert load_tokenizer(model_folder(**files)).eos_ids == expected


@pytest.mark.parametrize("config", [{"add_bos_token": True, "bos_token": "<s>"}, {"add_bos_token": False}])
def test_an_explicit_add_bos_token_decides(model_folder: WriteFolder, config: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(model_folder(tokenizer_config=config))
    assert tokenizer.add_bos is config["add_bos_token"]
    assert (tokenizer.encode("a")[0] == 0) is config["add_bos_token"]
    assert tokenizer.encode("a", add_special=False)[0] != 0


def test_add_eos_token_puts_the_end_behind(model_folder: WriteFolder) -> None:
    tokenizer = load_tokenizer(model_folder(tokenizer_config={"add_eos_token": True, "eos_token": "</s>"}))
    assert tokenizer.encode("a")[-1] == 1


def test_a_template_file_goes_before_the_configuration(model_folder: WriteFolder) -> None:
    folder = model_folder(tokenizer_config={"chat_template": "from the configuration"})
    assert load_vocabulary(folder).templates == {"default": "from the configuration"}
    (folder / "chat_template.jinja").write_text("from the file")
    assert load_vocabulary(folder).templates == {"default": "from the file"}


def test_several_templates_keep_their_names(model_folder: WriteFolder) -> None:
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = model_folder(tokenizer_config={"chat_template": listed})
    assert load_vocabulary(folder).templates == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config", {"eos_token": 7}),
        ("tokenizer_config", {"chat_template": 7}),
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}),
        ("generation_config", {"eos_token_id": "x"}),
        ("config", {"eos_token_id": -1}),
    ],
)
def test_a_malformed_field_is_refused_by_file_and_name(
    model_folder: WriteFolder, name: str, content: dict[str, Any]
) -> None:
    (field,) = content
    with pytest.raises(FormatError, match=rf"{name}\.json: {field}: "):
        load_tokenizer(model_folder(**{name: content}))
