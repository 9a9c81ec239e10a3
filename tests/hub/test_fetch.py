"""Fetching from a hub on this machine that misbehaves: what comes is whole and checked, or is not there."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from asyncpage.cli.preflight import check_engine
from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, UsageError
from asyncpage.formats.safetensors_folder import SafetensorsFolder
from asyncpage.hub.connection import Connection
from asyncpage.hub.fetch import fetch_model
from asyncpage.hub.name import HubName, parse_hub_name
from asyncpage.store import resolve_model
from tests.hub.hub_server import COMMIT, Answering, FakeHub, git_digest, served

WEIGHTS = save({"weight": np.arange(3000, dtype=np.float32)})
SINGLE = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"# tiny",
    "pytorch_model.bin": b"\x80pickled",
    "onnx/model.onnx": b"onnx",
    "model.safetensors": WEIGHTS,
}
SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
    "model-1.safetensors": save({"a": np.zeros(500, np.float32)}),
    "model-2.safetensors": save({"b": np.ones(500, np.float32)}),
    "other.safetensors": b"not named by the index",
}
TINY = HubName("org/tiny")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with served(SINGLE) as hub:
        yield hub


def fetch(hub: FakeHub, word: str = "org/tiny", timeout_s: float = 20.0) -> Path:
    name = parse_hub_name(word)
    assert name is not None
    connection = Connection(name, hub.endpoint, timeout_s)
    return fetch_model(name, lambda stage, done, total: None, connection, sleep=lambda wait_s: None)


def final_names(cache: Path) -> list[str]:
    """What has come to lie under a final name, of blobs, snapshots and branches."""
    folder = cache / "models--org--tiny"
    below = [path for part in ("blobs", "snapshots", "refs") for path in (folder / part).rglob("*")]
    return sorted(path.name for path in below if not path.is_dir())


def refused(hub: FakeHub, kind: type[Exception] = ModelError, word: str = "org/tiny") -> str:
    with pytest.raises(kind) as caught:
        fetch(hub, word)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_read_comes_and_is_then_what_the_name_means(hub: FakeHub, cache: Path) -> None:
    path = fetch(hub)
    assert path == cache / "models--org--tiny" / "snapshots" / COMMIT == resolve_model("org/tiny")
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert SafetensorsFolder(path).tensors.keys() == {"weight"}
    assert check_engine(EngineConfig(model="org/tiny")) == path
    assert not (cache / "models--org--tiny" / ".asyncpage").exists()


def test_the_library_itself_finds_in_the_cache_what_was_fetched(hub: FakeHub, cache: Path) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    path = fetch(hub)
    assert try_to_load_from_cache("org/tiny", "model.safetensors", cache_dir=cache) == str(path / "model.safetensors")
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings
    (repo,) = scanned.repos
    assert (repo.repo_id, [*repo.refs]) == ("org/tiny", ["main"])
    (revision,) = repo.revisions
    assert sorted(file.file_name for file in revision.files) == ["config.json", "model.safetensors", "tokenizer.json"]
    blob = (path / "model.safetensors").resolve()
    assert blob.name == hashlib.sha256(WEIGHTS).hexdigest()


def test_a_cut_connection_is_taken_up_by_a_range(hub: FakeHub) -> None:
    hub.misbehave("model.safetensors", lambda to: to.send_file(cut=4000), lambda to: to.send_file(cut=500))
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None, "bytes=4000-", "bytes=4500-"]


def test_a_later_fetch_takes_up_what_an_earlier_one_left(hub: FakeHub, cache: Path) -> None:
    cuts = [lambda to: to.send_file(cut=4000), *[lambda to: to.send_file(cut=0)] * 6]
    hub.misbehave("model.safetensors", *cuts)
    assert "does not go on" in refused(hub)
    assert final_names(cache) == []
    hub.asked.clear()
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == ["bytes=4000-"]
    assert hub.ranges("config.json") == []


def test_a_hub_without_ranges_is_read_from_the_beginning(hub: FakeHub) -> None:
    hub.misbehave("model.safetensors", lambda to: to.send_file(cut=4000), lambda to: to.send_file(ranges=False))
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS


def test_another_range_than_the_one_asked_for_is_refused(hub: FakeHub, cache: Path) -> None:
    wrong = {"Content-Range": f"bytes 0-99/{len(WEIGHTS)}"}
    hub.misbehave(
        "model.safetensors", lambda to: to.send_file(cut=4000), lambda to: to.send(206, WEIGHTS[:100], headers=wrong)
    )
    assert "was asked for bytes 4000- of model.safetensors and sent 'bytes 0-99/" in refused(hub)
    assert final_names(cache) == []


def test_a_file_that_is_too_short_is_refused(hub: FakeHub, cache: Path) -> None:
    hub.misbehave("model.safetensors", *[lambda to: to.send_file(WEIGHTS[:-8])] * 9)
    assert f"no bytes of model.safetensors behind {len(WEIGHTS) - 8}" in refused(hub)
    assert final_names(cache) == []


def test_a_file_that_is_too_long_is_refused_and_not_kept(hub: FakeHub, cache: Path) -> None:
    hub.misbehave("model.safetensors", lambda to: to.send_file(WEIGHTS + b"more"))
    assert f"longer than the {len(WEIGHTS)} bytes" in refused(hub)
    assert final_names(cache) == []
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_wrong_bytes_of_the_right_length_never_get_the_files_name(hub: FakeHub, cache: Path, file: str) -> None:
    wrong = bytes(len(SINGLE[file]))
    hub.misbehave(file, lambda to: to.send_file(wrong))
    digests = {
        "model.safetensors": (hashlib.sha256(wrong).hexdigest(), hashlib.sha256(WEIGHTS).hexdigest()),
        "config.json": (git_digest(wrong), git_digest(b"{}")),
    }[file]
    text = refused(hub)
    assert f"{file} of org/tiny is not the file it should be: its hash is {digests[0]}, expected {digests[1]}" in text
    assert not {digests[1], file, "main"} & {*final_names(cache)}
    with pytest.raises(UsageError, match="asyncpage fetch org/tiny"):
        resolve_model("org/tiny")
    assert (fetch(hub) / file).read_bytes() == SINGLE[file]


def test_a_damaged_file_in_the_cache_is_found_and_replaced(hub: FakeHub) -> None:
    weights = fetch(hub) / "model.safetensors"
    weights.resolve().write_bytes(bytes(len(WEIGHTS)))
    hub.asked.clear()
    fetch(hub)
    assert weights.read_bytes() == WEIGHTS
    assert [asked.path.rpartition("/")[2] for asked in hub.asked] == ["main", "model.safetensors"]


def test_what_is_there_is_checked_and_not_downloaded_again(hub: FakeHub) -> None:
    fetch(hub)
    hub.asked.clear()
    fetch(hub)
    assert [asked.path for asked in hub.asked] == ["/api/models/org/tiny/revision/main"]


def test_a_cache_without_links_is_left_as_it_is(hub: FakeHub) -> None:
    weights = fetch(hub) / "model.safetensors"
    weights.resolve().rename(weights)
    hub.asked.clear()
    fetch(hub)
    assert not weights.is_symlink()
    assert hub.ranges("model.safetensors") == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_answer_that_passes_is_asked_for_again(hub: FakeHub, status: int) -> None:
    hub.misbehaviours["/api/models/"] = [lambda to: to.send(status, b"")] * 2
    hub.misbehave("model.safetensors", *[lambda to: to.send(status, b"")] * 5)
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS


def test_an_answer_that_does_not_pass_is_told(hub: FakeHub) -> None:
    hub.misbehaviours["/api/models/"] = [lambda to: to.send(503, b"")] * 3
    assert f"{hub.endpoint} answered 503; check the network" in refused(hub)


def test_a_hub_that_stalls_is_asked_again_from_where_it_stopped(hub: FakeHub) -> None:
    goes_on = threading.Event()

    def stall(to: Answering) -> None:
        to.send_response(200)
        to.send_header("Content-Length", str(len(WEIGHTS)))
        to.end_headers()
        to.wfile.write(WEIGHTS[:4000])
        goes_on.wait(60)
        to.close_connection = True

    def answer(to: Answering) -> None:
        goes_on.set()
        to.send_file()

    hub.misbehave("model.safetensors", stall, answer)
    assert (fetch(hub, timeout_s=0.3) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges("model.safetensors") == [None, "bytes=4000-"]


def test_a_slow_hub_is_waited_for(hub: FakeHub) -> None:
    def dribble(to: Answering) -> None:
        to.send_response(200)
        to.send_header("Content-Length", str(len(WEIGHTS)))
        to.end_headers()
        for start in range(0, len(WEIGHTS), 500):
            to.wfile.write(WEIGHTS[start : start + 500])
            to.wfile.flush()

    hub.misbehave("model.safetensors", dribble)
    assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "GatedRepo", "org/tiny is gated and no token was sent: agree to its terms at"),
        (401, "GatedRepo", "and run it again with HF_TOKEN set to that token"),
        (401, "", "does not exist or is private"),
        (403, "", "set HF_TOKEN to a token that may read it"),
        (404, "RepoNotFound", "there is no org/tiny at"),
        (404, "RevisionNotFound", "org/tiny has no revision main; see"),
        (418, "", "answered 418 for org/tiny"),
    ],
)
def test_a_refusal_says_what_to_do(hub: FakeHub, cache: Path, status: int, code: str, said: str) -> None:
    def refuse(to: Answering) -> None:
        to.send(status, b"", headers={"X-Error-Code": code})

    hub.misbehaviours["/api/models/"] = [refuse]
    assert said in refused(hub)
    assert final_names(cache) == []
    hub.misbehave("config.json", refuse)  # the list may be free where the files are not
    assert said in refused(hub)


def test_the_token_is_sent_and_not_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    hub.misbehave("model.safetensors", lambda to: to.send(403, b"", headers={"X-Error-Code": "GatedRepo"}))
    text = refused(hub)
    assert "the token that was sent may not read it" in text
    assert "topsecret" not in text
    assert {asked.authorization for asked in hub.asked} == {"Bearer hf_topsecret"}


def test_the_token_does_not_go_where_the_hub_sends_on_to(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    with served(SINGLE) as other:
        location = {"Location": f"{other.endpoint}/org/tiny/resolve/{COMMIT}/model.safetensors"}
        hub.misbehave("model.safetensors", *[lambda to: to.send(302, b"", headers=location)] * 2)
        other.misbehave("model.safetensors", lambda to: to.send_file(cut=4000))
        assert (fetch(hub) / "model.safetensors").read_bytes() == WEIGHTS
        assert [(asked.range, asked.authorization) for asked in other.asked] == [(None, None), ("bytes=4000-", None)]


def test_a_hub_that_is_not_there_is_told_in_one_line() -> None:
    with served({}) as hub:
        pass
    assert f"{hub.endpoint}: " in refused(hub)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"id": "x", "sha": "../..", "siblings": []}'])
def test_what_is_no_hub_is_told(hub: FakeHub, body: bytes) -> None:
    hub.misbehaviours["/api/models/"] = [lambda to: to.send(200, body)]
    assert "check HF_ENDPOINT" in refused(hub)


def test_a_file_that_cannot_be_checked_is_not_fetched(hub: FakeHub) -> None:
    body = b'{"id": "x", "sha": "%s", "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]}'
    hub.misbehaviours["/api/models/"] = [lambda to: to.send(200, body % COMMIT.encode())]
    assert "does not say by which size and hash to check config.json" in refused(hub)


def test_the_shards_that_the_index_names_come() -> None:
    with served(SHARDED) as hub:
        path = fetch(hub)
        assert hub.ranges("other.safetensors") == []
    assert SafetensorsFolder(path).tensors.keys() == {"a", "b"}


def test_a_repository_without_a_shard_is_refused() -> None:
    with served({name: data for name, data in SHARDED.items() if name != "model-2.safetensors"}) as hub:
        assert "has no model-2.safetensors" in refused(hub)


def test_one_gguf_file_of_several_comes() -> None:
    files = {"config.json": b"{}", "tiny-Q4_K_M.gguf": b"GGUF four", "tiny-Q8_0.gguf": b"GGUF eight"}
    with served(files) as hub:
        path = fetch(hub, "org/tiny:q8_0")
        assert (path.name, path.read_bytes()) == ("tiny-Q8_0.gguf", b"GGUF eight")
        assert [asked.path.rpartition("/")[2] for asked in hub.asked] == ["main", "tiny-Q8_0.gguf"]
        assert "choose one, as org/tiny:tiny-Q4_K_M.gguf" in refused(hub, UsageError)
        assert resolve_model("org/tiny:tiny-Q8_0.gguf") == resolve_model("org/tiny") == path


def test_a_revision_is_kept_beside_main(hub: FakeHub) -> None:
    path = fetch(hub, "org/tiny@refs/pr/1")
    assert hub.asked[0].path == "/api/models/org/tiny/revision/refs/pr/1"
    assert resolve_model("org/tiny@refs/pr/1") == resolve_model(f"org/tiny@{COMMIT}") == path
    with pytest.raises(UsageError, match="of it there is: refs/pr/1"):
        resolve_model("org/tiny")


def test_two_fetches_at_once_download_once(hub: FakeHub) -> None:
    both_ask = threading.Event()

    def second(to: Answering) -> None:
        both_ask.set()
        to.send(200, json.dumps(hub.listing()).encode())

    def wait(to: Answering) -> None:
        assert both_ask.wait(60)
        to.send_file()

    hub.misbehaviours["/api/models/"] = [lambda to: to.send(200, json.dumps(hub.listing()).encode()), second]
    hub.misbehave("model.safetensors", wait)
    with ThreadPoolExecutor(2) as pool:
        first, later = pool.map(lambda number: fetch(hub), range(2))
    assert (first / "model.safetensors").read_bytes() == WEIGHTS
    assert first == later
    assert hub.ranges("model.safetensors") == [None]


def test_too_little_room_is_told_before_anything_comes(hub: FakeHub) -> None:
    real = hub.listing()
    real["siblings"][-1]["lfs"]["size"] = 10**18
    hub.misbehaviours["/api/models/"] = [lambda to: to.send(200, json.dumps(real).encode())]
    assert "org/tiny needs 1000000000.0 GB more in" in refused(hub, UsageError)
    assert len(hub.asked) == 1


def test_a_cache_that_cannot_be_written_is_told(hub: FakeHub, cache: Path) -> None:
    cache.write_text("")
    assert "set HF_HUB_CACHE to another folder" in refused(hub, UsageError)


def test_progress_ends_with_every_byte_downloaded_and_checked(hub: FakeHub) -> None:
    told: list[tuple[str, int, int]] = []
    fetch_model(TINY, lambda *step: told.append(step), Connection(TINY, hub.endpoint))
    total = len(WEIGHTS) + 2  # config.json and tokenizer.json are alike and come once
    assert [step for step in told if step[1] == total][-1] == ("checking", total, total)
    assert ("downloading", total, total) in told
