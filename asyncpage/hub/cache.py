"""Models in the cache folder that Hugging Face's tools share, found without any library and without the network.

The store asks it for a name that is no path; `fetch` asks where to put files. It sends to nobody.
`hub_cache_dir` reads the environment, because the folder is shared with tools that are told so there.

INVARIANT: what it returns has every file that will be read: a snapshot that lacks one is refused by that file's name.

Source: the layout of the cache that the `huggingface_hub` library documents.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from asyncpage.errors import ModelError, UsageError
from asyncpage.formats.json_text import read_json_object
from asyncpage.formats.safetensors_folder import INDEX_NAME, MAX_INDEX_BYTES
from asyncpage.hub.name import MAIN, HubName
from asyncpage.hub.selection import select

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"[\w.+ -]{1,200}\.safetensors", re.ASCII)


def hub_cache_dir() -> Path:
    """`HF_HUB_CACHE`, or `hub` below `HF_HOME`, or `~/.cache/huggingface/hub`; it need not exist."""
    own = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE"))
    if own is not None:
        return _expanded(own)
    shared = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return _expanded(os.environ.get("HF_HOME", os.path.join(shared, "huggingface"))) / "hub"


def find_model(name: HubName) -> Path:
    """The snapshot's folder that `name` means, or the GGUF file in it.

    Errors: `UsageError` that says what to type, when it is not in the cache or not whole there.
    """
    folder = hub_cache_dir() / name.folder_name
    snapshot = _snapshot(name, folder)
    if snapshot is None:
        known = _revisions(folder)
        there = f" (of it there is: {', '.join(known)})" if known else ""
        raise UsageError(
            f"there is no file or folder {name}, and no such model in the Hugging Face cache {folder.parent}{there}; "
            f"to download it, type: {name.to_fetch}"
        )
    # A link to nothing is a file that somebody wanted here: it counts, and is then found to be missing.
    files = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_symlink() or path.is_file()}
    try:
        selection = select(name, files)
    except UsageError as error:
        raise UsageError(f"{error} (looked for in {snapshot}; what is not there comes by: {name.to_fetch})") from None
    needed = list(selection.files)
    if selection.is_sharded:
        _demand(name, snapshot, [INDEX_NAME])
        needed += shards(snapshot / INDEX_NAME)
    _demand(name, snapshot, needed)
    return snapshot if selection.gguf is None else snapshot / selection.gguf


def shards(index: Path) -> list[str]:
    """The files of weights that an index names. Errors: `FormatError`, `ModelError` when it is not an index."""
    weight_map = read_json_object(index, MAX_INDEX_BYTES, most_containers=64).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) and _are_words(weight_map) else set()
    if not names or not all(_SHARD.fullmatch(name) for name in names):
        raise ModelError(f"{index}: its weight_map does not give the plain name of a safetensors file to each tensor")
    return sorted(names)


def _are_words(weight_map: dict[str, object]) -> bool:
    return all(isinstance(name, str) for name in weight_map.values())


def _demand(name: HubName, snapshot: Path, files: list[str]) -> None:
    missing = [file for file in files if not (snapshot / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(
            f"the download of {name} in {snapshot} is not complete: {missing[0]}{more} is missing; to complete it, "
            f"type: {name.to_fetch}"
        )


def _snapshot(name: HubName, folder: Path) -> Path | None:
    revision = name.revision or MAIN
    commit = revision
    # Where it is no branch or tag that is known here, it may be a commit.
    with contextlib.suppress(OSError, UnicodeDecodeError):
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    snapshot = folder / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def _revisions(folder: Path) -> list[str]:
    refs = folder / "refs"
    return sorted(str(path.relative_to(refs)) for path in refs.rglob("*") if path.is_file())[:10]


def _expanded(word: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(word))).absolute()
