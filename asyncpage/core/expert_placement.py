"""Which rank holds which expert of a layer, and how busy that makes each rank.

The executor asks when it loads a model whose experts are spread over ranks; `asyncpage doctor` shows what would come
of it.

INVARIANT: every rank holds as many experts as any other, or one less, so that each needs as much memory.

Source: the greedy rule is that of Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.
"""

from __future__ import annotations

from collections.abc import Sequence


def round_robin(experts: int, ranks: int) -> tuple[int, ...]:
    """The rank of each expert, in turn: for experts of which no load is known."""
    return tuple(expert % ranks for expert in range(experts))


def by_load(tokens: Sequence[int], ranks: int) -> tuple[int, ...]:
    """The rank of each expert, by the tokens that each has served: the busiest first, to the idlest rank with room."""
    owners = [0] * len(tokens)
    load, room = [0] * ranks, [len(tokens) // ranks + (rank < len(tokens) % ranks) for rank in range(ranks)]
    for expert in sorted(range(len(tokens)), key=lambda expert: (-tokens[expert], expert)):
        rank = min((rank for rank in range(ranks) if room[rank]), key=lambda rank: (load[rank], rank))
        owners[expert] = rank
        load[rank] += tokens[expert]
        room[rank] -= 1
    return tuple(owners)


def rank_tokens(tokens: Sequence[int], owners: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Tokens that each rank's experts have served together."""
    load = [0] * ranks
    for served, rank in zip(tokens, owners, strict=True):
        load[rank] += served
    return tuple(load)
