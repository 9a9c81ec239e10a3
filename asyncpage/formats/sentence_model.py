"""What a model's own files say of pooling: the modules of a sentence-transformers folder, or a GGUF's key.

The engine asks how a prompt's states become a vector, the encoder's loader how long a prompt may be.

INVARIANT: a module or a mode that would change the vector and is not supported is refused by name, never passed over.

Sources: the folder layout of the `sentence-transformers` library; the GGUF specification's `pooling_type`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.formats.json_text import parse_json_object, read_json_object
from asyncpage.messages import Pooling
from asyncpage.records import record

MODULES_NAME = "modules.json"
LENGTH_NAME = "sentence_bert_config.json"
POOLING_NAME = "config.json"  # in the pooling module's own folder
MAX_BYTES = 1024 * 1024  # real ones have a few hundred
MAX_CONTAINERS = 1000

Kind = Literal["last", "mean", "cls"]
_KINDS: Mapping[str, Kind] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_GGUF_KINDS: Mapping[int, Kind] = {1: "mean", 2: "cls", 3: "last"}  # 0 is none; 4, ranking, is another kind of answer
_FLAG = "pooling_mode_"
# Flags of the older spelling, by the mode they stand for.
_FLAGS = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "max_tokens": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


@record(frozen=True, slots=True)
class SentenceModel:
    """`pooling` None: the files do not say. `max_tokens`: of a prompt, with what stands around it; None for no limit.

    `lowers_text`: text is brought to lower case before the tokenizer sees it.
    """

    pooling: Pooling | None = None
    max_tokens: int | None = None
    lowers_text: bool = False


def read_sentence_model(path: Path) -> SentenceModel:
    """What the folder or GGUF file `path` says.

    Errors: `ModelError` for a module or mode that is not supported, `FormatError` when a file is malformed.
    """
    if not path.is_dir():
        return SentenceModel(_gguf_pooling(path))
    if not (path / MODULES_NAME).exists():
        return SentenceModel()
    pooling: Kind | None = None
    is_normalized = False
    for number, module in enumerate(_modules(path / MODULES_NAME)):
        kind = module["type"].rpartition(".")[2]
        if (kind == "Transformer" and not module["path"]) != (number == 0):
            raise ModelError(
                f"{path / MODULES_NAME}: module {number} is {kind!r} in {module['path']!r}; first comes a Transformer, "
                "once, in the folder itself"
            )
        if kind == "Pooling" and pooling is None:
            pooling = _pooling_kind(_inside(path, module["path"]) / POOLING_NAME)
        elif kind == "Normalize" and pooling is not None:
            is_normalized = True
        elif kind != "Transformer":
            raise ModelError(
                f"{path / MODULES_NAME}: module {number}, {kind!r}, is not supported; supported are a Transformer, one "
                "Pooling, then Normalize"
            )
    length_file = path / LENGTH_NAME
    settings = read_json_object(length_file, MAX_BYTES, MAX_CONTAINERS) if length_file.exists() else {}
    longest = settings.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise FormatError(str(length_file), "max_seq_length", f"found {longest!r}, a positive number is needed")
    return SentenceModel(
        None if pooling is None else Pooling(pooling, is_normalized), longest, bool(settings.get("do_lower_case"))
    )


def _modules(file: Path) -> list[dict[str, Any]]:
    """The file is a list, and the bounded reader takes objects: it is read as the value of one."""
    try:
        size = file.stat().st_size
        data = file.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    if size > MAX_BYTES:
        raise FormatError(str(file), "file", f"has {size} bytes, at most {MAX_BYTES} are allowed")
    modules = parse_json_object(b'{"modules":' + data + b"}", str(file), "file", MAX_CONTAINERS)["modules"]
    if not isinstance(modules, list) or not modules:
        raise FormatError(str(file), "file", "must hold a list of modules")
    for number, module in enumerate(modules):
        match module:
            case {"type": str(), "path": str()}:
                continue
            case _:
                shown = json.dumps(module)[:100]
                raise FormatError(str(file), f"[{number}]", f"found {shown}, an object with type and path is needed")
    return modules


def _inside(folder: Path, name: str) -> Path:
    """A module's folder. Errors: `FormatError` for a name that leads out of the model's."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise FormatError(str(folder / MODULES_NAME), "path", f"{name!r} leads out of the model's folder")
    return folder / name


def _pooling_kind(file: Path) -> Kind:
    found = read_json_object(file, MAX_BYTES, MAX_CONTAINERS)
    modes = {mode for flag, mode in _FLAGS.items() if found.get(_FLAG + flag) is True}
    modes |= {
        name.removeprefix(_FLAG)
        for name, value in found.items()
        if name.startswith(_FLAG) and value is True and name.removeprefix(_FLAG) not in _FLAGS
    }
    spelt = found.get("pooling_mode")
    if spelt is not None:
        modes |= set(map(str, spelt if isinstance(spelt, list) else [spelt]))
    if len(modes) != 1 or not modes <= _KINDS.keys():
        raise ModelError(
            f"{file}: pooling by {' and '.join(sorted(modes)) or 'nothing'} is not supported; supported is one of "
            f"{', '.join(_KINDS)}"
        )
    return _KINDS[modes.pop()]


def _gguf_pooling(path: Path) -> Pooling | None:
    file = GGUFFile(path)
    try:
        found = file.metadata.get(f"{file.metadata.get('general.architecture')}.pooling_type")
    finally:
        file.close()
    if found in (None, 0):
        return None
    if not isinstance(found, int) or found not in _GGUF_KINDS:
        raise ModelError(f"{path}: pooling type {found!r} is not supported; supported are 1 (mean), 2 (cls), 3 (last)")
    return Pooling(_GGUF_KINDS[found])
