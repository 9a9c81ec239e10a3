"""What can be known to fail before any weight is loaded: each check is one line to read and says what to type.

`serve`, `generate` and `chat` run these before they start an engine.

INVARIANT: nothing here loads torch or a tensor; a check that cannot tell lets the start go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Container, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path

from asyncpage.adapters.adapter_file import AdapterFile
from asyncpage.backends.registry import check_name
from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, UsageError
from asyncpage.formats.gguf import MAGIC, GGUFFile
from asyncpage.formats.safetensors_folder import SafetensorsFolder
from asyncpage.kernels.quantised import GRIDS
from asyncpage.machine import Memory, read_memory
from asyncpage.server.config import ServerConfig
from asyncpage.server.tls import load_tls
from asyncpage.store import resolve_model
from asyncpage.text.generation import read_optional_json

# The interpreter, torch itself and one step's activations, beside weights and KV cache.
_RUNTIME_BYTES = 400 * 1024**2

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_engine(config: EngineConfig, *, is_torch_here: bool | None = None, memory: Memory | None = None) -> Path:
    """Refuse an engine that cannot start here; returns the model's path.

    `is_torch_here` and `memory` are looked up when None. Errors: `UsageError`.
    """
    if is_torch_here is None:
        is_torch_here = find_spec("torch") is not None
    if not is_torch_here:
        raise UsageError("torch is not installed, and running a model needs it; type: pip install 'asyncpage[torch]'")
    path = resolve_model(config.model)
    if config.chat_template is not None and not Path(config.chat_template).is_file():
        raise UsageError(f"--chat-template {config.chat_template} is not a file; give the path of a Jinja template")
    check_name(config.attention_backend)
    _check_adapters(config)
    _check_kind(path, config.model)
    _check_context(config, path)
    paths = [path]
    if config.draft_model is not None:
        paths.append(resolve_model(config.draft_model))
        _check_kind(paths[1], config.draft_model)
    if config.draft_head is not None:
        paths.append(Path(config.draft_head).expanduser())
        if not (paths[1] / "config.json").is_file():
            raise UsageError(
                f"--draft-head {config.draft_head} is no folder with a config.json; make one for the model with "
                "scripts/train_draft_head"
            )
    _check_memory(config, paths, read_memory() if memory is None else memory)
    return path


def check_address(config: ServerConfig) -> None:
    """Refuse a certificate that cannot be used, and a port or socket path that cannot be listened on, by listening on
    it for a moment.

    Errors: `UsageError`.
    """
    load_tls(config)
    if config.uds is not None:
        _check_socket_path(Path(config.uds))
        return
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UsageError(f"--host {config.host} is not an address of this machine: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            # As the server does: a port whose last connections still linger can be used again at once.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise _unusable(config, error) from None


def _check_adapters(config: EngineConfig) -> None:
    """Folders that are not there, and adapters that say themselves that they cannot be run."""
    for folder in config.lora_dir:
        if not Path(folder).expanduser().is_dir():
            raise UsageError(f"--lora-dir {folder} is not a folder; make it, or give the one that holds your adapters")
    for text in config.lora:
        try:
            AdapterFile(Path(text.partition("=")[2]).expanduser(), None, config.max_lora_rank).close()
        except ModelError as error:
            raise UsageError(f"--lora {text}: {error}") from None


def _check_kind(path: Path, name: str) -> None:
    if path.is_dir():
        return
    if path.suffix == ".safetensors":
        raise UsageError(f"{name} is only the weights of a model; give its folder, with config.json and tokenizer.json")
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{name} cannot be read ({error.strerror}); give a file that this user may read") from None
    if not is_gguf:
        raise UsageError(f"{name} is not a GGUF file; give one, or a folder with config.json and safetensors")


def _check_context(config: EngineConfig, path: Path) -> None:
    """A context longer than the model's. Where rotary scaling stretches it, the model itself is asked later."""
    found = read_optional_json(path / "config.json")
    positions = found.get("max_position_embeddings")
    scaling = found.get("rope_scaling") or found.get("rope_parameters") or {}
    is_plain = isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type", "default")) == "default"
    if config.max_model_len is None or not isinstance(positions, int) or not is_plain:
        return
    if config.max_model_len > positions:
        raise UsageError(
            f"--max-model-len {config.max_model_len} is more than the {positions} positions of this model; "
            "lower it or leave it out"
        )


def _check_memory(config: EngineConfig, paths: Sequence[Path], memory: Memory) -> None:
    """Weights are held as `weights_dtype`, whatever the file holds, so each of its bits may become several bytes.

    Those that native code multiplies by as they are count so; where there is none, the executor finds out.
    """
    if config.device == "cuda":
        return
    held = config.dtype if config.weights_dtype == "auto" else config.weights_dtype
    item_bytes = _ITEM_BYTES.get(held, 4)
    is_packed = not config.exact and held in ("auto", "float32") and config.weights_dtype == "auto"
    made_bytes = {"none": item_bytes, "int8": 1.1, "int4": 0.7}[config.quantization]
    weights = sum(_weight_bytes(path, made_bytes, GRIDS if is_packed else ()) for path in paths)
    needed = weights + (config.kv_cache_bytes or 0) + _RUNTIME_BYTES
    if memory.available and needed > memory.available:
        raise UsageError(
            f"too little memory: {config.model} needs about {_gib(needed)} ({_gib(weights)} of weights"
            f"{f', {_gib(config.kv_cache_bytes)} of KV cache' if config.kv_cache_bytes else ''}), "
            f"{_gib(memory.available)} are available{' in this control group' if memory.limit else ''}; "
            "free some, lower --kv-cache-bytes, try --weights-dtype bfloat16, or serve a smaller model"
        )


def _weight_bytes(path: Path, item_bytes: float, as_stored: Container[str]) -> int:
    """What a model's weights take, those of the types `as_stored` what they take in the file: from the container's
    header, so a malformed file is told here already."""
    container = SafetensorsFolder(path) if path.is_dir() else GGUFFile(path)
    infos = container.tensors.values()
    size = sum(info.size if info.dtype in as_stored else prod(info.shape) * item_bytes for info in infos)
    container.close()
    return int(size)


def _check_socket_path(path: Path) -> None:
    if not path.parent.is_dir():
        raise UsageError(f"--uds {path}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--uds {path}: the folder {path.parent} may not be written; choose another")
    if not path.exists():
        return
    if not path.is_socket():
        raise UsageError(f"--uds {path} exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(str(path))
        raise UsageError(f"--uds {path}: another server listens there; stop it or choose another path")


def _unusable(config: ServerConfig, error: OSError) -> UsageError:
    where = f"port {config.port} of {config.host}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"{where} is busy; stop what listens there, or type --port {config.port % 65535 + 1}")
    if error.errno == errno.EACCES:
        return UsageError(f"{where} may not be used by this user; type a --port above 1023")
    return UsageError(f"{where} cannot be listened on ({error.strerror}); type --host 127.0.0.1")


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"
