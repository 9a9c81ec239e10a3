"""Which layers share a block table: those of one attention shape, cut so that blocks of the shared pool are full.

A model asks once, when it is put together.

INVARIANT: the layers of a group have one attention shape, and the groups that see everything come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from asyncpage.backends.contract import AttentionSpec
from asyncpage.messages import LayerGroup
from asyncpage.models.attention import AttentionShape

MOST_GROUPS = 8
"""Unless there are more shapes. Every group has block tables of its own and is planned anew in every step."""


def group_layers(shapes: Sequence[AttentionShape]) -> tuple[tuple[int, ...], ...]:
    """Layers by group, those of one shape in one group or, where shapes are unequally many, in several.

    A block takes room in as many KV tensors as the largest group has layers, whichever group holds it. So three layers
    that see everything and fifteen that see a window become six groups of three: the long tables of the first waste
    nothing.
    """
    by_shape: dict[AttentionShape, list[int]] = {}
    for layer, shape in sorted(enumerate(shapes), key=lambda item: item[1].window):
        by_shape.setdefault(shape, []).append(layer)
    counts = [len(layers) for layers in by_shape.values()]

    def groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    sizes = [size for size in range(1, max(counts) + 1) if groups(size) <= max(MOST_GROUPS, len(counts))]
    size = min(sizes, key=lambda size: (size * groups(size), groups(size)))
    return tuple(tuple(layers[at : at + size]) for layers in by_shape.values() for at in range(0, len(layers), size))


@dataclass(frozen=True, slots=True)
class Layering:
    """A model's layers in their groups. `groups`, `layer_groups`, `layer_slots`: see `model.Model`.

    `shapes`: one a group.
    """

    shapes: tuple[AttentionShape, ...]
    groups: tuple[LayerGroup, ...]
    layer_groups: tuple[int, ...]
    layer_slots: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Sequence[AttentionShape]) -> Layering:
        """Of layers that have these shapes."""
        groups = group_layers(shapes)
        of_groups = tuple(shapes[layers[0]] for layers in groups)
        places = {layer: (group, slot) for group, layers in enumerate(groups) for slot, layer in enumerate(layers)}
        return cls(
            of_groups,
            tuple(
                LayerGroup("window" if shape.window else "full", shape.window, len(layers))
                for shape, layers in zip(of_groups, groups, strict=True)
            ),
            tuple(places[layer][0] for layer in range(len(shapes))),
            tuple(places[layer][1] for layer in range(len(shapes))),
        )

    def specs(self, dtype: torch.dtype, kv_dtype: str, block_size: int) -> tuple[AttentionSpec, ...]:
        """One a group, for activations of `dtype`."""
        return tuple(shape.spec(dtype, kv_dtype, block_size) for shape in self.shapes)
