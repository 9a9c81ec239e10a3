"""What a model family is: a class that reads a config of its kind and builds the model that it describes.

Found by entry point (`registry`), under the `model_type` that its `config.json` files have; one that serves several
types has an entry for each. The defaults that its files leave out, and what it cannot obey, are its own affair.

INVARIANT: a value of the config that changes the answer is obeyed, or refused by name before any weight is read.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from asyncpage.models.config import Config
from asyncpage.models.encoder import Encoder
from asyncpage.models.model import Model
from asyncpage.models.parameter import Parameters

API = 1
"""The contract's newest version."""


class Family(Protocol):
    """One family of models. `api`: the contract's version; `name`: what people call it.

    `kind`: what `build` makes, a `Model` or an `Encoder`. `architectures`: the names in `config.json` that it serves;
    other heads on the same layers make other answers, and are not among them.
    """

    api: ClassVar[int]
    name: ClassVar[str]
    kind: ClassVar[Literal["decoder", "encoder"]]
    architectures: ClassVar[tuple[str, ...]]

    def build(self, config: Config, parameters: Parameters) -> Model | Encoder:
        """The model that `config` (a `config.json`'s vocabulary) describes, its tensors taken from `parameters`.

        It is called twice: first with parameters that have shapes and no values, to learn what the model needs.
        Errors: `ModelError` for an option or a tensor that does not fit, by name.
        """
        ...
