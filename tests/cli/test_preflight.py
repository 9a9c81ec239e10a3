"""What is told before any weight is loaded."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from asyncpage.cli.preflight import check_address, check_engine
from asyncpage.config import EngineConfig
from asyncpage.errors import FormatError, UsageError
from asyncpage.machine import Memory
from asyncpage.server.config import ServerConfig

GIB = 1024**3
PLENTY = Memory(64 * GIB, 64 * GIB, None)

# The parameters of SmolLM2-135M, as its authors count them, with the embedding tied.
DEMO_PARAMETERS = 134_515_008


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_busy_port_is_told_with_the_next_one(busy: int) -> None:
    with pytest.raises(UsageError, match=rf"port {busy} of 127\.0\.0\.1 is busy.*--port {busy % 65535 + 1}"):
        check_address(ServerConfig(port=busy))


def test_a_free_port_is_free_again_after_the_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_address(ServerConfig(port=port))
    check_address(ServerConfig(port=port))
    check_address(ServerConfig(port=0))


def test_a_host_that_is_not_ours_is_told() -> None:
    with pytest.raises(UsageError, match=r"cannot be listened on .*--host 127\.0\.0\.1"):
        check_address(ServerConfig(host="192.0.2.1"))  # an address reserved for documentation


def test_a_socket_path_is_checked_without_touching_it(tmp_path: Path) -> None:
    check_address(ServerConfig(uds=str(tmp_path / "new")))
    with pytest.raises(UsageError, match="does not exist; make it first"):
        check_address(ServerConfig(uds=str(tmp_path / "none" / "new")))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="exists and is not a socket"):
        check_address(ServerConfig(uds=str(tmp_path / "file")))
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        check_address(ServerConfig(uds=str(path)))  # left behind by a server that is gone: nobody listens
        server.listen()
        with pytest.raises(UsageError, match="another server listens there"):
            check_address(ServerConfig(uds=str(path)))
    assert path.exists()


def test_without_torch_it_says_what_to_type() -> None:
    with pytest.raises(UsageError, match=r"type: pip install 'asyncpage\[torch\]'"):
        check_engine(EngineConfig(), is_torch_here=False)


def test_a_missing_model_or_template_is_told(demo_model: Path) -> None:
    with pytest.raises(UsageError, match=r"/no/model\.gguf"):
        check_engine(EngineConfig(model="/no/model.gguf"), is_torch_here=True, memory=PLENTY)
    with pytest.raises(UsageError, match=r"--chat-template /no\.jinja is not a file"):
        check_engine(EngineConfig(chat_template="/no.jinja"), is_torch_here=True, memory=PLENTY)


def test_the_demo_model_fits_where_its_weights_and_the_runtime_fit(demo_model: Path) -> None:
    assert check_engine(EngineConfig(), is_torch_here=True, memory=PLENTY) == demo_model
    weights = DEMO_PARAMETERS * 4
    just_weights = Memory(GIB, weights, GIB)
    with pytest.raises(UsageError, match=r"too little memory: demo needs about 0\.9 GiB \(0\.5 GiB of weights\)"):
        check_engine(EngineConfig(exact=True), is_torch_here=True, memory=just_weights)
    check_engine(EngineConfig(), is_torch_here=True, memory=just_weights)  # as the file holds them: 0.1 GiB
    # Half the bytes a weight: what was too little is enough.
    for half in (EngineConfig(dtype="bfloat16"), EngineConfig(weights_dtype="bfloat16")):
        check_engine(half, is_torch_here=True, memory=Memory(GIB, weights // 2 + GIB // 2, GIB))


def test_the_asked_for_cache_counts(demo_model: Path) -> None:
    with pytest.raises(UsageError, match=r"8\.0 GiB of KV cache.*4\.0 GiB are available"):
        check_engine(EngineConfig(kv_cache_bytes=8 * GIB), is_torch_here=True, memory=Memory(4 * GIB, 4 * GIB, None))


def test_memory_that_cannot_be_read_refuses_nobody(demo_model: Path) -> None:
    check_engine(EngineConfig(), is_torch_here=True, memory=Memory(0, 0, None))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.gguf", b"not a model at all" * 10, r"a\.gguf is not a GGUF file; give one, or a folder"),
        ("README.md", b"", r"README\.md is not a GGUF file; give one, or a folder"),
        ("model.safetensors", b"\2\0\0\0\0\0\0\0{}", r"model\.safetensors is only the weights .* give its folder"),
    ],
)
def test_a_file_that_is_no_model_is_told_before_loading(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        check_engine(EngineConfig(model=str(tmp_path / name)), is_torch_here=True, memory=PLENTY)


def test_a_gguf_file_that_is_damaged_is_told_before_loading(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF and then nothing of use" * 10)
    with pytest.raises(FormatError, match=r"a\.gguf"):
        check_engine(EngineConfig(model=str(tmp_path / "a.gguf")), is_torch_here=True, memory=PLENTY)


def test_an_unknown_attention_backend_is_refused_before_anything_is_loaded(demo_model: Path) -> None:
    with pytest.raises(UsageError, match=r"no attention backend 'nope'; installed: .*cpu"):
        check_engine(EngineConfig(attention_backend="nope"), is_torch_here=True, memory=PLENTY)


@pytest.mark.parametrize("scaling", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}])
def test_a_context_longer_than_the_models_is_refused_from_its_config_alone(tmp_path: Path, scaling: dict) -> None:
    write_folder(tmp_path, max_position_embeddings=256, **scaling)
    with pytest.raises(UsageError, match=r"--max-model-len 257 is more than the 256 positions"):
        check_engine(EngineConfig(model=str(tmp_path), max_model_len=257), is_torch_here=True, memory=PLENTY)
    check_engine(EngineConfig(model=str(tmp_path), max_model_len=256), is_torch_here=True, memory=PLENTY)


def test_what_rotary_scaling_makes_of_a_context_is_left_to_the_model(tmp_path: Path) -> None:
    write_folder(tmp_path, max_position_embeddings=256, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    check_engine(EngineConfig(model=str(tmp_path), max_model_len=1024), is_torch_here=True, memory=PLENTY)


def write_folder(folder: Path, **config: object) -> None:
    save_file({"w": np.zeros(4, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))


def test_adapters_that_cannot_be_run_are_told_before_the_model_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4, "use_dora": true}')
    (tmp_path / "config.json").write_text("{}")
    for settings, words in (
        ({"lora": (f"a={folder}",)}, r"--lora a=.*use_dora"),
        ({"lora": (f"a={tmp_path / 'none'}",)}, r"--lora a=.*none: no such folder"),
        ({"lora_dir": (str(tmp_path), str(tmp_path / "none"))}, r"--lora-dir .*none is not a folder"),
    ):
        with pytest.raises(UsageError, match=words):
            check_engine(EngineConfig(model=str(tmp_path), **settings), is_torch_here=True, memory=PLENTY)
