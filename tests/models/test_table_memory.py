"""Where tables lie: zeros at lines of the cache, each by itself, for as long as anybody has one."""

from __future__ import annotations

import gc

import torch

from asyncpage.models.table_memory import TableMemory


def test_pieces_are_zeros_that_nobody_else_has_and_begin_at_a_line_of_the_cache() -> None:
    memory = TableMemory()
    sizes = [1, 64, 65, 3 << 20, 0, 61 << 20, 100, (64 << 20) + 1, 7]
    pieces = [memory.take(size) for size in sizes]
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        assert piece.shape == (size,)
        assert piece.data_ptr() % 64 == 0 or not size
        assert not piece.any()
        piece.fill_(number + 1)
    for number, piece in enumerate(pieces):
        assert (piece == number + 1).all()


def test_a_piece_outlives_the_memory_that_gave_it() -> None:
    memory = TableMemory()
    piece = memory.take(5 << 20)
    piece.fill_(7)
    del memory
    gc.collect()
    torch.zeros(32 << 20, dtype=torch.uint8).fill_(1)
    assert (piece == 7).all()
