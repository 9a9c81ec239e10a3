"""Where every block is, drawn for those who look at the engine while it runs.

The KV manager draws it when a front end asks. A pool may have a hundred thousand blocks and a step waits for nobody,
so the work is a generator of slices, each far below a step; the pool may change between two of them, and the next
picture heals what this one shows askew.

INVARIANT: drawing changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from asyncpage.core.block_tables import BlockTables
from asyncpage.core.explanation import Explanations
from asyncpage.messages import BlockChart, BlockSight, Holder, Int32

BLOCKS_AT_ONCE = 2048
"""Blocks, or table entries, of one slice: 0.3 ms, less than a slice may take while steps are in flight."""

_TOKEN = 4  # bytes


def draw(tables: BlockTables) -> Generator[None, None, BlockChart]:
    """Every block of the pool; yields between slices."""
    blocks = tables.pool.total + 1
    owners: Int32 = np.full(blocks, -1, dtype=np.int32)
    requests: NDArray[np.int64] = np.zeros(len(tables.held), dtype=np.int64)
    seen = 0
    for row in np.flatnonzero(tables.held).tolist():
        life = tables.life(row)
        if life is None:  # it left while the picture was drawn
            continue
        requests[row] = life.request
        held = int(tables.held[row])
        owners[tables.tables[:, row, :held]] = row
        seen += len(tables.groups) * held
        if seen >= BLOCKS_AT_ONCE:
            seen = 0
            yield
    owners[0] = -1  # what stands where a window has passed
    references: NDArray[np.uint8] = np.zeros(blocks, dtype=np.uint8)
    named: NDArray[np.bool_] = np.zeros(blocks, dtype=np.bool_)
    for first in range(0, blocks, BLOCKS_AT_ONCE):
        if first:
            yield
        last = min(first + BLOCKS_AT_ONCE, blocks)
        counts, names = tables.pool.look(first, last)
        references[first:last] = np.frombuffer(counts, dtype=np.uint8)
        named[first:last] = np.frombuffer(names, dtype=np.bool_)
    references[0] = 0
    owners[references == 0] = -1  # given back while the picture was drawn
    return BlockChart(owners, references, named, requests)


def look_at(tables: BlockTables, explanations: Explanations, block: int) -> Generator[None, None, BlockSight | None]:
    """One block, by its number; yields between slices."""
    if not 0 < block <= tables.pool.total:
        return None
    holders: list[Holder] = []
    seen = 0
    for row in np.flatnonzero(tables.held).tolist():
        held = int(tables.held[row])
        life = tables.life(row)
        for group, index in np.argwhere(tables.tables[:, row, :held] == block).tolist():
            if life is not None:
                label = explanations.label_of(life.request)
                holders.append(Holder(row, life.request, label, group, index))
        seen += len(tables.groups) * held
        if seen >= BLOCKS_AT_ONCE:
            seen = 0
            yield
    references = tables.pool.references(block)
    contents = tables.index.contents(block)
    if contents is not None:
        named = (contents.name, contents.parent, contents.tokens, contents.chain)
        return BlockSight(block, references, *named, tuple(holders))
    if not holders:
        return BlockSight(block, references, b"", b"", b"", (), ())
    # It has no name yet, or never will: what its row came with may say what is in it.
    one = holders[0]
    life = tables.life(one.row)
    tokens = b""
    if life is not None and life.request == one.request:
        width = _TOKEN * tables.block_size
        tokens = life.prefix.tokens[width * one.index : width * (one.index + 1)]
    chain = tuple(tables.tables[one.group, one.row, : one.index].tolist())
    return BlockSight(block, references, b"", b"", tokens, chain, tuple(holders))
