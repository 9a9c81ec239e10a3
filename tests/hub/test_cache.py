"""Names of the hub in a cache folder: what they mean, and what of it is refused, without library and network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncpage.errors import ModelError, UsageError
from asyncpage.hub import name as hub_name
from asyncpage.hub.cache import hub_cache_dir
from asyncpage.store import resolve_model

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Repository:
    """One in the cache, laid out as the hub's library does."""

    def __init__(self, cache: Path, name: str = "models--org--tiny") -> None:
        self.folder = cache / name
        self.snapshot = self.folder / "snapshots" / COMMIT
        self.snapshot.mkdir(parents=True)
        (self.folder / "blobs").mkdir()
        self.ref("main", COMMIT)

    def ref(self, name: str, text: str) -> None:
        (self.folder / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "refs" / name).write_text(text)

    def add(self, *files: str, text: str = "{}") -> None:
        for file in files:
            blob = self.folder / "blobs" / file.replace("/", "-")
            blob.write_text(text)
            (self.snapshot / file).parent.mkdir(exist_ok=True)
            (self.snapshot / file).symlink_to(os.path.relpath(blob, (self.snapshot / file).parent))

    def lose(self, file: str) -> None:
        """The content goes, the link to it stays."""
        (self.snapshot / file).resolve().unlink()


@pytest.fixture
def repository(cache: Path) -> Repository:
    return Repository(cache)


def refused(name: str = "org/tiny") -> str:
    with pytest.raises(UsageError) as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_means_the_snapshot_of_main(repository: Repository) -> None:
    repository.add("config.json", "model.safetensors")
    assert resolve_model("org/tiny") == repository.snapshot
    assert resolve_model(f"org/tiny@{COMMIT}") == repository.snapshot


def test_a_branch_with_slashes_is_found(repository: Repository) -> None:
    repository.add("config.json", "model.safetensors")
    repository.ref("refs/pr/7", COMMIT + "\n")
    assert resolve_model("org/tiny@refs/pr/7") == repository.snapshot


def test_a_folder_of_that_name_wins(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.add("config.json", "model.safetensors")
    monkeypatch.chdir(tmp_path)
    own = Path("org/tiny")
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert resolve_model("org/tiny") == own


def test_a_name_that_is_not_there_says_what_to_type(cache: Path) -> None:
    text = refused("org/tiny@v1:Q8_0")
    assert f"no such model in the Hugging Face cache {cache};" in text
    assert text.endswith("type: asyncpage fetch org/tiny@v1:Q8_0")


def test_without_the_extra_the_line_for_pip_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_name, "find_spec", lambda name: None)
    assert refused().endswith("type: pip install 'asyncpage[hub]', then: asyncpage fetch org/tiny")


def test_resolving_loads_no_library() -> None:
    code = (
        "import sys\nfrom asyncpage.store import resolve_model\n"
        "try:\n    resolve_model('org/tiny')\nexcept Exception as error:\n    print(type(error).__name__)\n"
        "print([name for name in ('huggingface_hub', 'httpx2', 'tqdm') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split("\n")[:2] == ["UsageError", "[]"]


@pytest.mark.parametrize("ref", ["../../elsewhere", "..", "", "x" * 40, "\x80", COMMIT[:7]])
def test_a_branch_that_is_no_commit_leads_nowhere(repository: Repository, ref: str) -> None:
    repository.add("config.json", "model.safetensors")
    repository.ref("main", ref)
    assert "no such model" in refused()


def test_a_lost_shard_is_told_by_its_name(repository: Repository) -> None:
    repository.add("config.json", "model-1.safetensors", "model-2.safetensors")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    repository.add("model.safetensors.index.json", text=json.dumps({"weight_map": weight_map}))
    assert resolve_model("org/tiny") == repository.snapshot
    repository.lose("model-2.safetensors")
    assert "not complete: model-2.safetensors is missing; to complete it, type: asyncpage fetch org/tiny" in refused()
    (repository.snapshot / "model-2.safetensors").unlink()
    assert "model-2.safetensors is missing" in refused()
    repository.lose("model-1.safetensors")
    assert "model-1.safetensors and 1 more is missing" in refused()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
def test_a_link_to_nothing_is_told_by_its_name(repository: Repository, file: str) -> None:
    repository.add("config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "README.md")
    repository.lose("README.md")
    assert resolve_model("org/tiny") == repository.snapshot
    repository.lose(file)
    assert f"{file} is missing" in refused()


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 1}, {"a": []}, {"a": "../model.safetensors"}])
def test_an_index_that_is_none_is_refused(repository: Repository, weight_map: object) -> None:
    repository.add("config.json")
    repository.add("model.safetensors.index.json", text=json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelError, match="weight_map does not give"):
        resolve_model("org/tiny")


def test_a_tokenizer_alone_is_no_model(repository: Repository) -> None:
    repository.add("config.json", "tokenizer.json")
    text = refused()
    assert "neither config.json with safetensors nor a GGUF file" in text
    assert text.endswith("comes by: asyncpage fetch org/tiny)")


@pytest.mark.parametrize("word", ["tiny-Q8_0.gguf", "Q8_0", "q8_0"])
def test_a_gguf_file_is_found_by_its_name_or_the_end_of_it(repository: Repository, word: str) -> None:
    repository.add("tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf", "mmproj-tiny-Q8_0.gguf")
    assert resolve_model(f"org/tiny:{word}") == repository.snapshot / "tiny-Q8_0.gguf"
    repository.lose("tiny-Q8_0.gguf")
    assert "tiny-Q8_0.gguf is missing" in refused(f"org/tiny:{word}")


def test_a_gguf_file_that_is_not_there_is_told_with_those_that_are(repository: Repository) -> None:
    repository.add("tiny-Q8_0.gguf")
    text = refused("org/tiny:Q4_0")
    assert "has no GGUF file Q4_0; it has tiny-Q8_0.gguf" in text
    assert text.endswith("comes by: asyncpage fetch org/tiny:Q4_0)")


ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"},
    {"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"},
    {"HF_HOME": "~/c"},
    {"HF_HOME": "$HOME/c", "XDG_CACHE_HOME": "/d"},
    {"XDG_CACHE_HOME": "/d"},
    {"HF_HUB_CACHE": "$HOME/e"},
)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=" ".join)
def test_the_cache_is_where_the_library_has_it(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, "HOME": "/h"}.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert str(hub_cache_dir()) == told.rstrip("\n")
