"""Folders of sentence-transformers in every spelling, and what is refused because it would change the vector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.sentence_model import SentenceModel, read_sentence_model
from asyncpage.messages import Pooling

OLD = "sentence_transformers.models."
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OLD}Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{OLD}Normalize"}
MEAN = {"word_embedding_dimension": 384, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(modules: Any = (TRANSFORMER, POOLING, NORMALIZE), pooling: Any = MEAN, **lengths: Any) -> Path:
        (tmp_path / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        if lengths:
            (tmp_path / "sentence_bert_config.json").write_text(json.dumps(lengths))
        return tmp_path

    return write


def test_the_real_folder_says_mean_normalised_and_256_tokens(embedding_model: Path) -> None:
    assert read_sentence_model(embedding_model) == SentenceModel(Pooling("mean"), 256, False)


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls", "embedding_dimension": 3}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
    ],
)
def test_a_mode_is_read_in_either_spelling(write: Write, pooling: Any, kind: Any) -> None:
    assert read_sentence_model(write(pooling=pooling)).pooling == Pooling(kind)


def test_without_a_normalising_module_vectors_keep_their_length(write: Write) -> None:
    folder = write([TRANSFORMER, POOLING], max_seq_length=128, do_lower_case=True)
    assert read_sentence_model(folder) == SentenceModel(Pooling("mean", is_normalized=False), 128, True)


def test_modules_are_known_by_the_last_part_of_their_name(write: Write) -> None:
    modules = [
        {**module, "type": f"elsewhere.{module['type'].rpartition('.')[2]}"} for module in (TRANSFORMER, POOLING)
    ]
    assert read_sentence_model(write(modules)).pooling == Pooling("mean", is_normalized=False)


def test_a_folder_or_a_bare_transformer_may_say_nothing(tmp_path: Path, write: Write) -> None:
    assert read_sentence_model(tmp_path) == SentenceModel()
    assert read_sentence_model(write([TRANSFORMER], max_seq_length=None)) == SentenceModel()


@pytest.mark.parametrize(
    "modules",
    [
        [POOLING],
        [TRANSFORMER, {**POOLING, "type": f"{OLD}Dense"}],
        [TRANSFORMER, POOLING, POOLING],
        [TRANSFORMER, NORMALIZE, POOLING],
        [{**TRANSFORMER, "path": "0_Transformer"}, POOLING],
        [TRANSFORMER, TRANSFORMER, POOLING],
    ],
    ids=str,
)
def test_modules_that_would_change_the_vector_are_refused_by_name(write: Write, modules: Any) -> None:
    with pytest.raises(ModelError, match=r"module \d(, | is )'"):
        read_sentence_model(write(modules))


@pytest.mark.parametrize(
    "pooling",
    [
        {},
        {**MEAN, "pooling_mode_cls_token": True},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_of_tomorrow": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "max"},
    ],
    ids=str,
)
def test_modes_that_are_none_or_several_or_unknown_are_refused(write: Write, pooling: Any) -> None:
    with pytest.raises(ModelError, match=r"pooling by .* is not supported; supported is one of cls, mean, lasttoken"):
        read_sentence_model(write(pooling=pooling))


@pytest.mark.parametrize("modules", ["", "{}", "[]", "[3]", '[{"type": "a.Transformer"}]', "[", '["x"], "y": [1]'])
def test_malformed_modules_are_named(write: Write, modules: str) -> None:
    with pytest.raises(FormatError, match=r"modules\.json"):
        read_sentence_model(write(modules))


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_a_path_that_leads_out_of_the_folder_is_refused(write: Write, path: str) -> None:
    with pytest.raises(FormatError, match="leads out of"):
        read_sentence_model(write([TRANSFORMER, {**POOLING, "path": path}]))


def test_a_length_that_is_none_is_refused(write: Write) -> None:
    with pytest.raises(FormatError, match="max_seq_length"):
        read_sentence_model(write(max_seq_length=0))


@pytest.mark.parametrize(
    ("number", "pooling"), [(None, None), (0, None), (1, Pooling("mean")), (2, Pooling("cls")), (3, Pooling("last"))]
)
def test_a_gguf_says_it_in_a_key(tmp_path: Path, number: int | None, pooling: Any) -> None:
    assert read_sentence_model(gguf(tmp_path, number)) == SentenceModel(pooling)


def test_a_gguf_that_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="pooling type 4 is not supported"):
        read_sentence_model(gguf(tmp_path, 4))


def gguf(folder: Path, number: int | None) -> Path:
    writer = GGUFWriter(folder / "m.gguf", "llama")
    if number is not None:
        writer.add_uint32("llama.pooling_type", number)
    writer.add_tensor("t", np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m.gguf"
