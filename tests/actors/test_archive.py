"""The archive in its cell, with a real folder and a real arena, on both loops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from asyncpage.actors.archive import Archive
from asyncpage.actors.base import ActorCell
from asyncpage.clock import SystemClock
from asyncpage.messages import BlockLabel, Discard, Fetch, Fetched, Shelved, Store, Stored, Touch
from asyncpage.pipes.host_arena import HostArena
from asyncpage.pipes.kv_file import file_bytes
from asyncpage.pipes.kv_folder import KvFolder
from asyncpage.pipes.mailbox import Mailbox

SLOT = 4096
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def go(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(main, 30))

    return go


def label(number: int) -> BlockLabel:
    return BlockLabel(number.to_bytes(32, "little"), 0, b"p" * 32, b"t" * 16, b"o" * 32)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class Place:
    """An archive that runs, and what it sends."""

    def __init__(self, path: Path, blocks: int = 100) -> None:
        self.arena = HostArena()
        self.arena.set_size(8, SLOT)
        self.answers: asyncio.Queue[object] = asyncio.Queue()
        self.box = Mailbox("archive", 1000)
        folder = KvFolder(path, "model", blocks * file_bytes(label(0), SLOT))
        self.archive = Archive(folder, self.arena, self, SystemClock())
        self.cell = ActorCell(self.archive, self.box, SystemClock())
        self.running = asyncio.ensure_future(self.cell.run())

    def send(self, message: object) -> None:
        self.answers.put_nowait(message)

    async def ask(self, message: object) -> object:
        self.box.send(message)
        return await self.answers.get()

    async def stop(self) -> None:
        self.cell.stop()
        await self.running
        self.arena.close()

    def fill(self, slot: int, byte: int) -> None:
        self.arena.slot(slot)[:] = bytes([byte]) * SLOT


def test_blocks_outlive_the_process(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        first = Place(tmp_path)
        assert await first.answers.get() == Shelved(())
        for number in range(3):
            first.fill(number, number + 1)
            assert await first.ask(Store(number, label(number))) == Stored(number, is_stored=True)
        await first.stop()
        second = Place(tmp_path)
        shelved = await second.answers.get()
        assert isinstance(shelved, Shelved)
        assert set(shelved.labels) == {label(number) for number in range(3)}
        assert await second.ask(Fetch(label(2), 7)) == Fetched(7, is_there=True)
        assert bytes(second.arena.slot(7)) == b"\3" * SLOT
        assert second.archive.stats()["fetched"] == 1
        await second.stop()

    run(main())


def test_a_damaged_or_missing_file_is_one_line_in_the_log_and_an_answer(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path)
        await place.answers.get()
        place.fill(0, 1)
        await place.ask(Store(0, label(0)))
        (path,) = files_in(tmp_path)
        contents = bytearray(path.read_bytes())
        contents[-1] ^= 1
        path.write_bytes(contents)
        with capture_logs() as lines:
            assert await place.ask(Fetch(label(0), 3)) == Fetched(3, is_there=False)
            assert await place.ask(Fetch(label(0), 3)) == Fetched(3, is_there=False)
        assert [line["event"] for line in lines] == ["archive.fetch_failed"] * 2
        assert "checksum" in lines[0]["reason"]
        await place.stop()

    run(main())


def test_what_is_of_no_use_in_the_folder_is_counted_in_one_line(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(5):
            (tmp_path / f"{number}.kv").write_bytes(b"no block")
        with capture_logs() as lines:
            place = Place(tmp_path)
            assert await place.answers.get() == Shelved(())
        opened = [line for line in lines if line["event"].startswith("archive")]
        assert [(line["damaged"], line["foreign"], line["blocks"]) for line in opened] == [(5, 0, 0)]
        await place.stop()

    run(main())


def test_a_full_disk_fails_stores_in_one_line_until_it_has_room(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        place = Place(tmp_path)
        await place.answers.get()
        write, is_full = os.write, True

        def write_or_fail(descriptor: int, data: Any) -> int:
            if is_full and threading.current_thread().name == "archive":
                raise OSError(28, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", write_or_fail)
        with capture_logs() as lines:
            for _ in range(3):
                assert await place.ask(Store(0, label(0))) == Stored(0, is_stored=False)
            is_full = False
            assert await place.ask(Store(0, label(0))) == Stored(0, is_stored=True)
        assert [line["event"] for line in lines] == ["archive.store_failed"]
        assert len(files_in(tmp_path)) == 1
        await place.stop()

    run(main())


def test_the_folder_is_bounded_and_what_is_removed_is_told(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        place = Place(tmp_path, blocks=2)
        await place.answers.get()
        for number in range(2):
            await place.ask(Store(number, label(number)))
        place.box.send(Touch((label(0).key,)))
        assert await place.ask(Store(2, label(2))) == Stored(2, is_stored=True, removed=(label(1).key,))
        place.box.send(Discard())
        assert await place.ask(Fetch(label(2), 0)) == Fetched(0, is_there=False)
        assert files_in(tmp_path) == []
        await place.stop()

    with capture_logs():
        run(main())


def test_closing_finishes_the_file_at_hand_and_leaves_the_rest(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        place = Place(tmp_path)
        await place.answers.get()
        begun, go_on = threading.Event(), threading.Event()
        store = place.archive._folder.store

        def slow_store(of: BlockLabel, payload: memoryview) -> None:
            begun.set()
            go_on.wait()
            store(of, payload)

        monkeypatch.setattr(place.archive._folder, "store", slow_store)
        for number in range(5):
            place.box.send(Store(number, label(number)))
        await asyncio.to_thread(begun.wait)
        stopping = asyncio.ensure_future(place.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not stopping.done()
        go_on.set()
        await stopping
        assert len(files_in(tmp_path)) == 1
        assert not any(thread.name == "archive" for thread in threading.enumerate())

    run(main())


def test_a_fault_in_the_thread_kills_the_actor(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place(tmp_path)
        await place.answers.get()
        place.box.send(Store(99, label(0)))
        with pytest.raises(IndexError, match="slot 99"):
            await place.running

    run(main())
