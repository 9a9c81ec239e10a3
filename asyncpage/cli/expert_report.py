"""What a file of measured expert load says, layer by layer: how uneven it is, and how busy it would make ranks.

`asyncpage doctor --expert-load FILE` prints it.

INVARIANT: 1.00 is an even share, of experts and of ranks alike; a step waits for whoever has the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncpage.core.expert_placement import by_load, rank_tokens, round_robin
from asyncpage.formats.expert_load import ExpertTokens


def report(layers: ExpertTokens, ranks: int) -> Iterator[tuple[str, str]]:
    """For each layer its name and what was found. `ranks`: of the executor that would serve it."""
    for layer, tokens in sorted(layers.items()):
        total, name = sum(tokens), f"experts of layer {layer}"
        if not total:
            yield name, f"{len(tokens)} experts have served nothing yet"
            continue
        busiest = max(range(len(tokens)), key=lambda expert: tokens[expert])
        idle = sum(count == 0 for count in tokens)
        found = f"{total:,} rows over {len(tokens)} experts, {idle} of them idle; the busiest is {busiest} with "
        found += f"{_share(tokens):.2f} of an even share"
        if 1 < ranks <= len(tokens):
            in_turn = _share(rank_tokens(tokens, round_robin(len(tokens), ranks), ranks))
            loaded = _share(rank_tokens(tokens, by_load(tokens, ranks), ranks))
            found += f"; of {ranks} ranks {in_turn:.2f} when placed in turn, {loaded:.2f} by this load"
        yield name, found


def _share(counts: Sequence[int]) -> float:
    """The greatest of them, in even shares."""
    return max(counts) * len(counts) / sum(counts)
