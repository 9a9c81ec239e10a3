"""The file of measured load: how many tokens each expert of each layer has served.

The executor keeps it while it serves a model with experts and was told where, and reads it when it starts anew;
`asyncpage doctor` shows it. JSON: `{"tokens": {"0": [12, 7, ...], "1": [...]}}`, a list for each layer with experts.

INVARIANT: whoever reads it sees a whole file, the last one or the new one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncpage.errors import FormatError
from asyncpage.formats.json_text import read_json_object

MAX_BYTES = 64 * 1024 * 1024

ExpertTokens = Mapping[int, tuple[int, ...]]
"""Of each layer with experts, by its index, the tokens that each of them has served."""


def read_expert_load(path: Path) -> ExpertTokens:
    """Errors: `ModelError` when there is no such file, `FormatError` when it holds something else."""
    layers = read_json_object(path, MAX_BYTES, most_containers=100_000).get("tokens")
    if not isinstance(layers, dict):
        raise FormatError(str(path), "tokens", "is not an object of layers; is this a file of expert load?")
    found: dict[int, tuple[int, ...]] = {}
    for layer, tokens in layers.items():
        is_counted = isinstance(tokens, list) and all(type(count) is int and count >= 0 for count in tokens)
        if not (layer.isascii() and layer.isdigit() and is_counted and tokens):
            raise FormatError(str(path), f"tokens.{layer[:20]}", "is no list of counts under a layer's index")
        found[int(layer)] = tuple(tokens)
    return found


def write_expert_load(path: Path, tokens: Mapping[int, Sequence[int]]) -> None:
    """Replace the file. Errors: `OSError`."""
    text = json.dumps({"tokens": {str(layer): [int(count) for count in counts] for layer, counts in tokens.items()}})
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text + "\n", encoding="ascii")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
