"""Weights: a malformed file is refused before anything is read from it, by name and reason; unusual good ones load."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncpage.errors import ModelError
from asyncpage.formats.safetensors import SafetensorsFile
from tests.cases.bad_weights import Good, bad_files, bad_indexes, folder_with, good_files
from tests.cases.model_folder import Model
from tests.cases.server import attempt, environment
from tests.cases.suite import Suite, covers

MANY = Path(__file__).with_name("many_starts.py")


def starts(command_lines: Sequence[Sequence[str]], limit_s: float = 300.0) -> list[dict[str, Any]]:
    """What became of each; all of them must fail."""
    done = subprocess.run(
        [sys.executable, str(MANY)], input=json.dumps(command_lines).encode(), stdout=subprocess.PIPE,
        env=environment(), timeout=limit_s, check=True,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@covers("WGT-01")
async def test_malformed_weights_are_refused_before_they_are_read(suite: Suite, tiny: Model) -> None:
    good = Good(tiny)
    base = suite.pool.folder / "weights"
    base.mkdir()
    folders = {}
    for number, (name, weights) in enumerate(bad_files(good)):
        folders[name] = folder_with(tiny, base / f"bad-{number}", weights)
    for number, (name, more) in enumerate(bad_indexes(good)):
        folders[name] = folder_with(tiny, base / f"index-{number}", None, more)
    command_lines = [["serve", str(folder), "--port", "0"] for folder in folders.values()]
    for (name, folder), found in zip(folders.items(), await asyncio.to_thread(starts, command_lines), strict=True):
        last = found["log"].strip().splitlines()[-1]
        assert found["code"] not in (0, None), (name, found)
        assert found["seconds"] < 2 * suite.slack, (name, found)
        assert found["grown"] < 2 * len(good.raw) + (50 << 20), (name, found)
        assert last.startswith(f"asyncpage: {folder}"), (name, found)
        assert len(last) > len(str(folder)) + 30, (name, found)
        assert "Traceback" not in found["log"], (name, found)
    alone = await asyncio.to_thread(attempt, folders["offsets: overlapping"], ["--port", "0"])
    assert alone.code not in (0, None)
    assert "overlap" in alone.log


@covers("WGT-01")
async def test_unusual_good_weights_load(suite: Suite, tiny: Model) -> None:
    good = Good(tiny)
    for number, (name, weights) in enumerate(good_files(good)):
        folder = folder_with(tiny, suite.pool.folder / f"good-{number}", weights)
        file = SafetensorsFile(folder / "model.safetensors")
        assert set(file.tensors) >= set(good.header), name
        file.close()
    last = Model(folder, tiny.vocab_size, tiny.ids)  # the one with an empty tensor and metadata is served too
    prompt = {"prompt": "the same model", "max_tokens": 8, "temperature": 0}
    async with suite.on(last) as run:
        served = await run.client.complete(**prompt)
    async with suite.on(tiny) as run:
        assert (await run.client.complete(**prompt)).text() == served.text()


@covers("WGT-01", long=True)
async def test_twenty_thousand_mutations_are_read_or_refused(suite: Suite, tiny: Model, tmp_path: Path) -> None:
    """A mutated header is refused, or what it says lies within the file."""
    raw = bytearray(Good(tiny).raw)
    head = 8 + int.from_bytes(raw[:8], "little")
    rng = random.Random(12)
    path = tmp_path / "model.safetensors"
    refused = 0
    for _ in range(20_000):
        mutated = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 5))):
            place = rng.randrange(head)
            mutated[place] = rng.choice((rng.randrange(256), ord(rng.choice('0123456789[]{}",:-.eE '))))
        path.write_bytes(mutated)
        try:
            file = SafetensorsFile(path)
        except ModelError:
            refused += 1
            continue
        for name in file.tensors:
            assert len(file.raw(name)) == file.tensors[name].size
        file.close()
    assert refused > 1000
