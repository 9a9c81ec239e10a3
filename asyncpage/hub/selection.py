"""Which files of a repository are read here: those that are fetched, and those that a snapshot must have.

The cache and the fetch decide with it; it knows names and opens nothing.

INVARIANT: a pickled file is never chosen, and neither is a name that leads out of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from asyncpage.errors import UsageError
from asyncpage.formats.safetensors_folder import INDEX_NAME, SINGLE_NAME
from asyncpage.hub.name import HubName

CONFIG = "config.json"
# Beside the weights, at the top of the repository.
COMPANIONS = frozenset(
    {
        CONFIG,
        "chat_template.jinja",
        "generation_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
)
_POOLING = re.compile(r"\d+_\w+/config\.json", re.ASCII)  # of a module that modules.json names

_SAFETENSORS = re.compile(r"[\w.+ -]+\.safetensors", re.ASCII)
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_GGUF = re.compile(r"(?:[\w+ -][\w.+ -]*/)*[\w+ -][\w.+ -]*\.gguf", re.ASCII | re.IGNORECASE)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf", re.ASCII | re.IGNORECASE)
_PROJECTOR = re.compile(r"(?:.*/)?mmproj[^/]*", re.IGNORECASE)  # turns pictures into states; no model by itself
_PICKLED = (".bin", ".pth", ".pt", ".ckpt")
_MOST_TOLD = 12


@dataclass(frozen=True, slots=True)
class Selection:
    """`files`: what is read, the weights last. `is_sharded`: the index among them names the weights.

    `gguf`: the one file of weights, where it is a GGUF file; then it is all that is read.
    """

    files: tuple[str, ...]
    is_sharded: bool = False
    gguf: str | None = None


def select(name: HubName, files: Collection[str]) -> Selection:
    """What is read of a repository that holds `files`.

    Errors: `UsageError` when there is nothing to read, or several things and no word on which.
    """
    if name.file is None and CONFIG in files:
        companions = tuple(sorted(file for file in files if file in COMPANIONS or _POOLING.fullmatch(file)))
        if SINGLE_NAME in files:
            return Selection((*companions, SINGLE_NAME))
        if INDEX_NAME in files:
            return Selection((*companions, INDEX_NAME), is_sharded=True)
        weights = [file for file in files if _SAFETENSORS.fullmatch(file)]
        if len(weights) == 1 and not _SHARD.fullmatch(weights[0]):
            return Selection((*companions, *weights))
        if weights:
            raise UsageError(f"{name} has safetensors files ({len(weights)}) and no {INDEX_NAME} to join them")
    chosen = _gguf(name, sorted(file for file in files if _GGUF.fullmatch(file) and not _PROJECTOR.fullmatch(file)))
    if chosen is not None:
        return Selection((chosen,), gguf=chosen)
    if any(file.endswith(_PICKLED) for file in files):
        raise UsageError(
            f"{name} has only pickled weights, which are never read; look for a repository of the same model with "
            "safetensors or GGUF files"
        )
    raise UsageError(f"{name} has neither {CONFIG} with safetensors nor a GGUF file, and nothing else is read")


def _gguf(name: HubName, candidates: Sequence[str]) -> str | None:
    """The GGUF file that is meant: the one named, the one whose name ends in the word given, or the only one."""
    word = name.file
    if word is None:
        found = list(candidates)
    elif word in candidates:
        found = [word]
    else:
        ends = re.compile(rf".*[-._/]{re.escape(word.removesuffix('.gguf'))}\.gguf", re.IGNORECASE)
        found = [file for file in candidates if ends.fullmatch(file)]
    parts = [file for file in found if _SPLIT.search(file)]
    if parts:
        raise UsageError(
            f"{parts[0]} of {name} is one part of a split GGUF file, which is not read; choose a file that is whole, "
            "or join the parts with llama-gguf-split --merge and give the path"
        )
    if len(found) == 1:
        return found[0]
    if not candidates and word is None:
        return None
    listed = found or candidates
    told = ", ".join(listed[:_MOST_TOLD]) + (" and others" if len(listed) > _MOST_TOLD else "")
    if not candidates:
        raise UsageError(f"{name.repo} has no GGUF file {word}; leave ':{word}' out")
    if not found:
        raise UsageError(f"{name.repo} has no GGUF file {word}; it has {told}")
    example = HubName(name.repo, name.revision, found[0])
    raise UsageError(f"{name} may mean {told}; choose one, as {example}")
