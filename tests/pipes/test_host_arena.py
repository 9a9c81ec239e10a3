"""The shared memory for host slots: nameless, closed to others, of one size for ever."""

import fcntl
import mmap
import os
import stat

import pytest

from asyncpage.errors import ProtocolError
from asyncpage.pipes.host_arena import HostArena, attach_arena


def test_both_sides_see_one_memory() -> None:
    arena = HostArena()
    arena.set_size(4, 8192)
    theirs = attach_arena(arena.fd, 8192)
    arena.slot(2)[:3] = b"abc"
    theirs[3 * 8192 : 3 * 8192 + 2] = b"xy"
    assert theirs[2 * 8192 : 2 * 8192 + 4] == b"abc\0"
    assert bytes(arena.slot(3)[:3]) == b"xy\0"
    assert len(arena.slot(0)) == 8192
    theirs.close()
    arena.close()


def test_only_the_owner_may_open_it_and_its_size_is_sealed() -> None:
    arena = HostArena()
    assert stat.S_IMODE(os.fstat(arena.fd).st_mode) == 0o600
    arena.set_size(2, 4096)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(arena.fd, 4096)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(arena.fd, 16384)
    assert fcntl.fcntl(arena.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    arena.close()
    arena.close()


def test_memory_is_taken_as_slots_are_written() -> None:
    arena = HostArena()
    arena.set_size(1 << 10, 1 << 20)
    assert os.fstat(arena.fd).st_blocks == 0
    arena.slot(5)[0] = 1
    assert os.fstat(arena.fd).st_blocks * 512 <= 4 << 20
    arena.close()


def test_what_is_no_arena_of_such_slots_is_refused() -> None:
    arena = HostArena()
    with pytest.raises(ProtocolError, match="not a host arena"):
        attach_arena(arena.fd, 4096)
    arena.set_size(3, 4096)
    with pytest.raises(ProtocolError, match="slots of 8192 bytes"):
        attach_arena(arena.fd, 8192)
    arena.close()
    read, write = os.pipe()
    with pytest.raises(ProtocolError, match="not a host arena"):
        attach_arena(read, 4096)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("slot", [-1, 3])
def test_there_are_no_slots_outside(slot: int) -> None:
    arena = HostArena()
    with pytest.raises(IndexError):
        arena.slot(0)
    arena.set_size(3, mmap.PAGESIZE)
    with pytest.raises(IndexError):
        arena.slot(slot)
    arena.close()
