"""SIGTERM and SIGINT as two wishes: the first asks for an orderly end, the second for an end at once.

`serve` hands the events to the server and lets the loading of a model be cut short by them.

INVARIANT: a wish is never lost: it stays set for whoever looks later.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupts:
    """`shutdown` is set by the first signal, `abort` by the second."""

    def __init__(self) -> None:
        self.shutdown = asyncio.Event()
        self.abort = asyncio.Event()
        self._at_first: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def listening(self, at_first: Callable[[], object]) -> Iterator[None]:
        """Take both signals over for as long as the block runs; `at_first` is called when the first one comes.

        Afterwards both are ignored: the command is over, and one more signal must not change its exit code.
        """
        loop = asyncio.get_running_loop()
        self._at_first = at_first
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._arrived)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                # Not a handler of ours: Python takes those back to the default while it ends.
                signal.signal(number, signal.SIG_IGN)

    async def unless_shutdown(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The result of `work`, or None when `shutdown` came first: it is cancelled then and has cleaned up."""
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self.shutdown.wait())
        try:
            await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            task.cancel()
            await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    def _arrived(self) -> None:
        if self.shutdown.is_set():
            self.abort.set()
        else:
            self.shutdown.set()
            self._at_first()
