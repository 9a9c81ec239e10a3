"""A folder whose weights are quantised, as a checkpoint like any other: they are dequantised when they are asked for.

`open_checkpoint` makes it around a `FolderCheckpoint` whose config has a `quantization_config`.

INVARIANT: names are those of the model without quantisation; how a weight is stored shows in `stored_as` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from asyncpage.errors import FormatError
from asyncpage.formats.mapped_file import Bytes
from asyncpage.weights.awq import Awq
from asyncpage.weights.folder_checkpoint import FolderCheckpoint
from asyncpage.weights.fp8 import Fp8
from asyncpage.weights.gptq import Gptq
from asyncpage.weights.quantisation import Quantisation
from asyncpage.weights.stored import Grid, Stored
from asyncpage.weights.stored_tensors import StoredTensors

METHODS: Mapping[str, Callable[[Mapping[str, Any], str], Quantisation]] = {
    "gptq": Gptq.parse,
    "awq": Awq.parse,
    "fp8": Fp8.parse,
    "compressed-tensors": Fp8.parse_compressed,
}
"""By `quant_method`."""


class QuantisedFolder:
    """See `Checkpoint`; `plain` is closed with it.

    Errors of the constructor: `FormatError` for a method or setting that is not obeyed, and for parts of a weight that
    do not fit one another.
    """

    def __init__(self, plain: FolderCheckpoint) -> None:
        self._plain = plain
        self.config = plain.config
        self.fingerprint = plain.fingerprint
        method = _choose(self.config["quantization_config"], plain.config_file)
        self._label = method.label
        self._stored = StoredTensors(plain.folder)
        self._weights = method.find(self._stored)
        for name, weight in self._weights.items():
            if name in self._stored.infos and name not in weight.parts:
                raise self._stored.error(name, "is there quantised and plain")
        self.stored_as = (method.label,) if self._weights else ()
        parts = {part for weight in self._weights.values() for part in weight.parts}
        self.names = (*self._weights, *(name for name in plain.names if name not in parts))

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        weight = self._weights.get(name)
        return self._plain.tensor(name, dtype) if weight is None else weight.read(self._stored, dtype)

    def stored(self, name: str) -> Stored:
        weight = self._weights.get(name)
        if weight is None:
            return self._plain.stored(name)
        return Stored(self._label, sum(self._stored.infos[part].size for part in weight.parts))

    def grid(self, name: str) -> Grid | None:
        return None

    def blocks(self, name: str) -> Iterator[Bytes]:
        return iter(())  # nothing has a grid

    def close(self) -> None:
        self._plain.close()


def _choose(config: Any, file: str) -> Quantisation:
    if not isinstance(config, dict):
        raise FormatError(file, "quantization_config", "is not an object")
    name = config.get("quant_method")
    parse = METHODS.get(name) if isinstance(name, str) else None
    if parse is None:
        reason = f"method {str(name)[:100]!r} is not supported; {', '.join(METHODS)} are, and GGUF files"
        raise FormatError(file, "quantization_config", reason)
    return parse(config, file)
