"""Which files of a repository are chosen."""

from __future__ import annotations

import pytest

from asyncpage.errors import UsageError
from asyncpage.formats import sentence_model
from asyncpage.hub.name import HubName, parse_hub_name
from asyncpage.hub.selection import COMPANIONS, Selection, select
from asyncpage.text import bert_vocabulary, folder_vocabulary, generation
from asyncpage.weights import folder_checkpoint

INDEX = "model.safetensors.index.json"


def test_every_file_that_a_reader_opens_beside_the_weights_is_a_companion() -> None:
    readers = (sentence_model, bert_vocabulary, folder_vocabulary, generation, folder_checkpoint)
    named = {value for reader in readers for name, value in vars(reader).items() if name.endswith("_NAME")}
    assert named - {INDEX, "model.safetensors"} == COMPANIONS


@pytest.mark.parametrize(
    ("word", "files", "expected"),
    [
        ("o/n", ["config.json", "model.safetensors", INDEX], Selection(("config.json", "model.safetensors"))),
        ("o/n", ["config.json", INDEX, "a.safetensors"], Selection(("config.json", INDEX), is_sharded=True)),
        ("o/n", ["config.json", "weights.safetensors"], Selection(("config.json", "weights.safetensors"))),
        ("o/n", ["config.json", "model.safetensors", "a.gguf"], Selection(("config.json", "model.safetensors"))),
        ("o/n:a.gguf", ["config.json", "model.safetensors", "a.gguf"], Selection(("a.gguf",), gguf="a.gguf")),
        ("o/n", ["config.json", "a.gguf", "mmproj-a.gguf"], Selection(("a.gguf",), gguf="a.gguf")),
        ("o/n:Q8_0", ["Q8_0/a-Q8_0.gguf", "a-Q6_K.gguf"], Selection(("Q8_0/a-Q8_0.gguf",), gguf="Q8_0/a-Q8_0.gguf")),
        ("o/n:f16", ["a.F16.gguf", "a-BF16.gguf"], Selection(("a.F16.gguf",), gguf="a.F16.gguf")),
        ("o/n", ["../a.gguf", "a.gguf", "/b.gguf", "x/../c.gguf"], Selection(("a.gguf",), gguf="a.gguf")),
    ],
)
def test_what_is_read_is_chosen(word: str, files: list[str], expected: Selection) -> None:
    name = parse_hub_name(word)
    assert name is not None
    assert select(name, files) == expected


@pytest.mark.parametrize(
    ("word", "files", "said"),
    [
        ("o/n", [], "neither config.json with safetensors nor a GGUF file"),
        ("o/n", ["model.safetensors"], "neither config.json"),
        ("o/n", ["config.json", "pytorch_model.bin"], "only pickled weights, which are never read"),
        ("o/n", ["config.json", "a.safetensors", "b.safetensors"], "no model.safetensors.index.json to join them"),
        ("o/n", ["config.json", "model-00001-of-00002.safetensors"], "no model.safetensors.index.json to join them"),
        ("o/n", ["a-Q8_0.gguf", "a-Q4_0.gguf"], "may mean a-Q4_0.gguf, a-Q8_0.gguf; choose one, as o/n:a-Q4_0.gguf"),
        ("o/n:Q4_0", ["a-Q4_0.gguf", "a-UD-Q4_0.gguf"], "o/n:Q4_0 may mean a-Q4_0.gguf, a-UD-Q4_0.gguf"),
        ("o/n:4_0", ["a-Q4_0.gguf"], "has no GGUF file 4_0; it has a-Q4_0.gguf"),
        ("o/n:Q8_0", ["model.safetensors"], "has no GGUF file Q8_0; leave ':Q8_0' out"),
        ("o/n:BF16", ["BF16/a-BF16-00001-of-00002.gguf", "a-Q8_0.gguf"], "has no GGUF file BF16"),
        ("o/n", ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "one part of a split GGUF file"),
        ("o/n", [f"a-{number}.gguf" for number in range(50)], "and others; choose one"),
    ],
)
def test_what_leaves_nothing_or_several_to_read_is_refused(word: str, files: list[str], said: str) -> None:
    name = parse_hub_name(word) or HubName("")
    with pytest.raises(UsageError) as caught:
        select(name, files)
    assert said in str(caught.value)
