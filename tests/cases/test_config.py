"""Settings that cannot work: found before weights load, told with the option, its value and what would do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from asyncpage.backends.contract import API
from tests.cases.model_folder import Model
from tests.cases.server import attempt
from tests.cases.suite import Suite, covers
from tests.cases.test_weights import starts


@dataclass(frozen=True)
class Wrong:
    """A command line that cannot work, and words of which each must be in what it says."""

    flags: Sequence[str]
    words: Sequence[str]


WRONG = (
    Wrong(["--block-size", "0"], ["--block-size", "at least 1", "0"]),
    Wrong(["--block-size", "-1"], ["--block-size", "at least 1", "-1"]),
    Wrong(["--num-kv-blocks", "0"], ["--num-kv-blocks", "at least", "0"]),
    Wrong(["--num-kv-blocks", "1"], ["--num-kv-blocks", "at least 2"]),
    Wrong(["--max-model-len", "0"], ["--max-model-len", "at least 1", "0"]),
    Wrong(["--max-model-len", "1024", "--num-kv-blocks", "32", "--block-size", "8"], ["--max-model-len", "1024", "32"]),
    Wrong(["--max-model-len", "4096"], ["--max-model-len", "4096", "2048"]),
    Wrong(["--max-num-seqs", "0"], ["--max-num-seqs", "at least 1", "0"]),
    Wrong(["--max-num-batched-tokens", "8", "--max-num-seqs", "16"], ["--max-num-batched-tokens", "8", "16"]),
    Wrong(["--port", "70000"], ["--port", "65535", "70000"]),
    Wrong(["--attention-backend", "nope"], ["attention backend", "nope", "cpu"]),
    Wrong(["--scheduling-policy", "nope"], ["--scheduling-policy", "nope", "fcfs"]),
    Wrong(["--dtype", "int9"], ["--dtype", "int9", "float32"]),
    Wrong(["--api-key", ""], ["--api-key", "empty"]),
    Wrong(["--enable-lora", "--lora-dir", "absent"], ["--lora-dir", "absent", "folder"]),
    Wrong(["--lora", "absent"], ["--lora", "NAME=FOLDER", "absent"]),
    Wrong(["--lora", "a=absent"], ["--lora", "absent", "adapter_config.json"]),
    Wrong(["--max-loras", "0"], ["--max-loras", "at least 1"]),
    Wrong(["--max-loras", "4", "--max-cpu-loras", "3"], ["--max-cpu-loras", "3", "4"]),
    Wrong(["--blok-size", "16"], ["--blok-size", "--block-size"]),
    Wrong(["--max-queue", "many"], ["--max-queue", "many"]),
    Wrong(["--max-num-seqs", "0", "--port", "70000", "--max-queue", "0"], ["--max-num-seqs", "--port", "--max-queue"]),
)

FILES = {
    "unknown-key": ("[engine]\nblok_size = 16\n", ["blok_size", "block_size"]),
    "wrong-type": ('[engine]\nblock_size = "many"\n', ["block_size", "many"]),
    "duplicate-key": ("[engine]\nblock_size = 16\nblock_size = 8\n", ["duplicate-key.toml"]),
    "unknown-table": ("[motor]\nblock_size = 16\n", ["motor"]),
}


def _check_told(
    suite: Suite, arguments: Sequence[str], words: Sequence[str], code: int, seconds: float, log: str
) -> None:
    assert code not in (0, None), (arguments, log)
    assert seconds < 5 * suite.slack, (arguments, seconds)
    assert "Traceback" not in log, (arguments, log)
    assert "executor.launched" not in log, (arguments, log)  # nothing was loaded
    missing = [word for word in words if word not in log]
    assert not missing, (arguments, missing, log)


@covers("CFG-01")
async def test_settings_that_cannot_work_are_told_before_anything_is_loaded(suite: Suite, tiny: Model) -> None:
    folder = suite.pool.folder / "wrong-settings"
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("no model")
    told: list[tuple[list[str], Sequence[str]]] = [([str(tiny.folder), *wrong.flags], wrong.words) for wrong in WRONG]
    for name, (text, words) in FILES.items():
        (folder / f"{name}.toml").write_text(text)
        told.append(([str(tiny.folder), "--config", str(folder / f"{name}.toml")], words))
    told += [([str(folder / name)], [str(folder / name)]) for name in ("empty", "file", "absent")]
    lines = [["serve", *arguments, *([] if "--port" in arguments else ["--port", "0"])] for arguments, _ in told]
    for (arguments, words), found in zip(told, await asyncio.to_thread(starts, lines), strict=True):
        _check_told(suite, arguments, words, found["code"], found["seconds"], found["log"])
    for arguments, words in told if suite.thorough else told[::7]:  # and as processes of their own
        alone = await asyncio.to_thread(attempt, arguments[0], arguments[1:])
        _check_told(suite, arguments, words, alone.code, alone.seconds, alone.log)
    optional = {
        "speculation": ["--speculation", "draft", "--num-speculative-tokens", "3", "--draft-model", "absent"],
    }
    for feature, flags in optional.items():
        alone = await asyncio.to_thread(attempt, tiny.folder, ["--port", "0", *flags])
        if alone.lacks == feature:
            suite.note(feature)
        else:
            _check_told(suite, flags, ["absent"], alone.code, alone.seconds, alone.log)


@covers("CFG-01", long=True)
async def test_a_backend_plugin_that_is_broken_is_named(suite: Suite, tiny: Model) -> None:
    """Plugins come by entry point, so two distributions are put on the path: one raises, one lacks a method."""
    folder = suite.pool.folder / "plugins"
    for name, text in (
        ("raising", "raise RuntimeError('no such card')\n"),
        ("lacking", f"class Backend:\n    api, name = {API}, 'lacking'\n"),
    ):
        (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{name}_backend.py").write_text(text)
        info = folder / f"{name}-1.0.dist-info"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[asyncpage.attention_backends]\n{name} = {name}_backend:Backend\n")
    for name, word in (("raising", "no such card"), ("lacking", "unsupported")):
        found = await asyncio.to_thread(
            lambda name=name: attempt(tiny.folder, ["--port", "0", "--attention-backend", name], path=str(folder))
        )
        assert found.code != 0
        assert "executor.loaded" not in found.log
        assert name in found.log
        assert word in found.log
        assert "Traceback" not in found.log
