"""Sampling defaults of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from asyncpage.errors import FormatError
from asyncpage.text.generation import generation_defaults


def write(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


def test_known_fields_become_sampling_fields(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
            "min_p": 0,
            "repetition_penalty": 1.05,
            "max_new_tokens": 2048,
            "do_sample": True,
            "eos_token_id": [1, 2],
            "transformers_version": "4.51.0",
        },
    )
    assert generation_defaults(folder) == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "max_tokens": 2048,
    }


def test_a_model_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    assert generation_defaults(tmp_path / "model.gguf") == {}
    assert generation_defaults(write(tmp_path, {"temperature": None})) == {}


@pytest.mark.parametrize("content", [{"temperature": "hot"}, {"top_k": True}, {"top_k": 1.5}, {"temperature": -1}])
def test_a_value_that_cannot_be_is_refused_by_name(tmp_path: Path, content: dict[str, Any]) -> None:
    (name,) = content
    with pytest.raises(FormatError, match=name):
        generation_defaults(write(tmp_path, content))
