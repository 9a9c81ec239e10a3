"""What a model's `generation_config.json` says about sampling and about the end of an answer.

The engine takes the defaults for requests that leave a field open; the vocabulary readers take the end ids.

INVARIANT: a value of the wrong type is refused by its name; fields that we do not know are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import FormatError, RequestError
from asyncpage.formats.json_text import read_json_object

GENERATION_NAME = "generation_config.json"
MAX_CONFIG_BYTES = 4 * 1024 * 1024  # real ones have a few hundred
MAX_CONFIG_CONTAINERS = 100_000  # one for each added token in the largest

_FIELDS: Mapping[str, tuple[str, type]] = {
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", int),
    "min_p": ("min_p", float),
    "repetition_penalty": ("repetition_penalty", float),
    "max_new_tokens": ("max_tokens", int),
}


def generation_defaults(path: Path) -> dict[str, Any]:
    """Defaults by `SamplingParams` field; {} for a GGUF file or a folder without `generation_config.json`.

    Errors: `FormatError` naming the field.
    """
    found = read_optional_json(path / GENERATION_NAME)
    defaults: dict[str, Any] = {}
    for key, (name, kind) in _FIELDS.items():
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and value != int(value)):
            raise FormatError(str(path / GENERATION_NAME), key, f"found {value!r}, a number is needed")
        defaults[name] = kind(value)
    try:
        SamplingParams(**defaults).check()
    except RequestError as error:
        raise FormatError(str(path / GENERATION_NAME), str(error.failure.param), str(error)) from None
    return defaults


def end_token_ids(found: Mapping[str, Any], file: Path) -> tuple[int, ...]:
    """The `eos_token_id` of a JSON object, one or a list. Errors: `FormatError`."""
    value = found.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, int) or id < 0:
            raise FormatError(str(file), "eos_token_id", f"found {value!r}, a token id or a list of them is needed")
    return tuple(ids)


def read_optional_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`, {} when there is no such file. Errors: `FormatError` when it is malformed."""
    return read_json_object(file, MAX_CONFIG_BYTES, MAX_CONFIG_CONTAINERS) if file.exists() else {}
