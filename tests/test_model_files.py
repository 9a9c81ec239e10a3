"""What the control plane reads of a model's folder, and where its files contradict one another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError
from asyncpage.messages import Pooling
from asyncpage.model_files import read_model_files

SMALL_FILES = ("config.json", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json")


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def folder(embedding_model: Path, tmp_path: Path) -> Path:
    """The real folder without its weights."""
    for name in SMALL_FILES:
        shutil.copy(embedding_model / name, tmp_path)
    shutil.copytree(embedding_model / "1_Pooling", tmp_path / "1_Pooling")
    return tmp_path


def test_a_folder_of_an_embedding_model_has_text_pooling_and_no_template(folder: Path) -> None:
    found = read_model_files(folder, EngineConfig())
    assert found.pooling == Pooling("mean")
    assert found.text.template is None
    assert found.text.tokenizer.encode("Hello!") == [101, 7592, 999, 102]  # as BERT's own example has it


def test_what_an_executor_is_told_of_a_control_token_is_no_text(demo_model: Path, folder: Path) -> None:
    for path, special, plain in ((demo_model, "<|im_end|>", "house"), (folder, "[SEP]", "house")):
        found = read_model_files(path, EngineConfig())
        assert found.vocabulary is not None
        ends = found.vocabulary.lengths.cumsum().tolist()
        told = [found.vocabulary.text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        ids = dict(zip(told, range(len(told)), strict=True))
        assert found.text.tokenizer.encode(special)[-1:] == [ids[b"\xff" + special.encode() + b"\xff"]]
        assert told.count(plain.encode()) == 1


def test_texts_that_are_to_be_in_lower_case_need_a_tokenizer_that_sees_to_it(folder: Path) -> None:
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    assert read_model_files(folder, EngineConfig()).pooling is not None
    root = json.loads((folder / "tokenizer.json").read_text())
    edit(folder / "tokenizer.json", normalizer={**root["normalizer"], "lowercase": False})
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(ModelError, match="are to be in lower case"):
        read_model_files(folder, EngineConfig())


def test_two_files_that_differ_about_lower_case_are_refused(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(ModelError, match=r"do_lower_case is False, and .*tokenizer\.json says otherwise"):
        read_model_files(folder, EngineConfig())
