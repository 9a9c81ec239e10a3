"""Which tokens of a step run with which adapter, planned once a step on the host.

The bank plans them before the forward pass; every adapted linear map of that pass reads them.

INVARIANT: a token with an adapter is in exactly one segment, its adapter's; a token without one is in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from asyncpage.messages import Int32


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """`places`: the N tokens of all segments, one segment behind the other, as indices or, where they lie side by side
    in the step, as a slice. `parts`: a segment's adapter slot, where it begins in those N and where it ends.
    """

    places: torch.Tensor | slice
    parts: tuple[tuple[int, int, int], ...]
    tokens: int

    def take(self, x_TI: torch.Tensor) -> torch.Tensor:
        """The N rows."""
        return x_TI[self.places] if isinstance(self.places, slice) else x_TI.index_select(0, self.places)

    def add(self, y_TO: torch.Tensor, more_NO: torch.Tensor) -> None:
        """Add to these N rows of `y_TO`, in place, and touch no other."""
        if isinstance(self.places, slice):
            y_TO[self.places].add_(more_NO)
        else:
            y_TO.index_add_(0, self.places, more_NO)


def plan_segments(slots_R: Int32, counts_R: Int32, device: torch.device) -> Segments | None:
    """For rows in these adapter slots (0: none), each with so many tokens, packed one row after the other.

    None where no row has an adapter.
    """
    if not slots_R.any():
        return None
    slots_T = np.repeat(slots_R, counts_R)
    places = np.flatnonzero(slots_T)
    places = places[np.argsort(slots_T[places], kind="stable")]
    slots, begins = np.unique(slots_T[places], return_index=True)
    ends = [*begins[1:].tolist(), len(places)]
    parts = tuple(zip(slots.tolist(), begins.tolist(), ends, strict=True))
    first = int(places[0])
    if int(places[-1]) - first == len(places) - 1 and (np.diff(places) == 1).all():
        return Segments(slice(first, first + len(places)), parts, len(places))
    return Segments(torch.from_numpy(places).to(device), parts, len(places))
