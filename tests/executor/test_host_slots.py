"""Blocks to slots and back: expected bytes are read from the pool with numpy's own indexing."""

import numpy as np
import pytest
import torch

from asyncpage.backends.contract import DeviceInfo, KVLayout
from asyncpage.backends.memory import allocate_kv
from asyncpage.errors import ProtocolError
from asyncpage.executor.host_slots import HostSlots
from asyncpage.pipes.host_arena import HostArena

BLOCKS, TENSORS, SLOTS = 9, 3, 5
LAYOUTS = {
    "blocks first": KVLayout((-1, 4, 2, 3, 8), "float32"),
    "blocks in the middle": KVLayout((2, 3, -1, 4, 8), "float32"),
    "blocks first, strided otherwise": KVLayout((-1, 4, 2, 3, 8), "bfloat16", stride_order=(2, 0, 3, 1, 4)),
    "blocks last": KVLayout((4, 2, 24, -1), "float16"),
}


def int32(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array(rows, dtype=np.int32)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> KVLayout:
    return LAYOUTS[request.param]


def pool_of(layout: KVLayout, seed: int) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    pool = [allocate_kv(layout, BLOCKS, DeviceInfo("cpu", "x86_64")) for _ in range(TENSORS)]
    for kv in pool:
        kv.copy_(torch.randn(kv.shape, generator=chance))
    return pool


def block_of(layout: KVLayout, pool: list[torch.Tensor], block: int) -> bytes:
    """What a slot must hold, taken item by item."""
    parts = []
    for kv in pool:
        bits = kv.contiguous().view(torch.int32 if layout.dtype == "float32" else torch.int16).numpy()
        parts.append(np.take(bits, block, axis=layout.shape.index(-1)).tobytes())
    return b"".join(parts)


def test_a_saved_block_is_its_tensors_one_after_another_and_comes_back_anywhere(layout: KVLayout) -> None:
    arena = HostArena()
    arena.set_size(SLOTS, layout.block_bytes * TENSORS)
    pool = pool_of(layout, 1)
    before = [block_of(layout, pool, block) for block in range(BLOCKS)]
    HostSlots(arena.fd, pool, layout).save(int32([(8, 0), (1, 4), (3, 2)]))
    assert [bytes(arena.slot(slot)) for slot in (0, 4, 2)] == [before[8], before[1], before[3]]
    assert not any(arena.slot(1))
    assert not any(arena.slot(3))
    assert [block_of(layout, pool, block) for block in range(BLOCKS)] == before

    other = pool_of(layout, 2)
    theirs = [block_of(layout, other, block) for block in range(BLOCKS)]
    HostSlots(arena.fd, other, layout).load(int32([(4, 7), (0, 2)]))
    expected = [*theirs[:2], before[8], *theirs[3:7], before[1], theirs[8]]
    assert [block_of(layout, other, block) for block in range(BLOCKS)] == expected
    arena.close()


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_outside_the_arena_moves_nothing(slot: int) -> None:
    layout = LAYOUTS["blocks first"]
    arena = HostArena()
    arena.set_size(SLOTS, layout.block_bytes * TENSORS)
    pool = pool_of(layout, 1)
    before = [block_of(layout, pool, block) for block in range(BLOCKS)]
    slots = HostSlots(arena.fd, pool, layout)
    with pytest.raises(ProtocolError, match="the arena has 5"):
        slots.load(int32([(1, 1), (slot, 2)]))
    with pytest.raises(ProtocolError, match="the arena has 5"):
        slots.save(int32([(1, 1), (2, slot)]))
    assert [block_of(layout, pool, block) for block in range(BLOCKS)] == before
    assert not any(arena.slot(1))
    arena.close()


def test_an_arena_of_other_slots_is_refused() -> None:
    layout = LAYOUTS["blocks first"]
    arena = HostArena()
    arena.set_size(SLOTS, layout.block_bytes * TENSORS - 8)
    with pytest.raises(ProtocolError, match="not a host arena of slots of 2304 bytes"):
        HostSlots(arena.fd, pool_of(layout, 1), layout).save(int32([(1, 1)]))
    arena.close()
