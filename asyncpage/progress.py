"""A progress bar on standard error: one redrawn line on a terminal, a plain line every tenth elsewhere.

Whoever lets people wait moves it; answers on standard output are never touched.

INVARIANT: it writes at most one line a tenth of a second on a terminal, and at most eleven lines in all elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TextIO

_REDRAW_S = 0.1
_WIDEST_BAR = 30


class Progress:
    """How far a job of `total` units is; `unit` "B" shows sizes, any other word shows counts.

    `now` gives seconds on a monotone clock.
    """

    def __init__(self, label: str, unit: str, stream: TextIO, now: Callable[[], float]) -> None:
        self._label = label
        self._unit = unit
        self._stream = stream
        self._now = now
        self._is_terminal = stream.isatty()
        self._started = now()
        self._drawn = self._started - 1.0
        self._tenths = -1
        self._open = False

    def update(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` units are there; `total` None when nobody knows."""
        if self._is_terminal:
            finished = total is not None and done >= total
            if finished or self._now() - self._drawn >= _REDRAW_S:
                self._drawn = self._now()
                self._open = True
                self._stream.write("\r\x1b[K" + self._line(done, total))
                self._stream.flush()
        else:
            tenths = 10 * done // total if total else 0
            if tenths > self._tenths:
                self._tenths = tenths
                self._stream.write(self._text(done, total) + "\n")
                self._stream.flush()

    def close(self) -> None:
        """Leave the last state standing and go to the next line."""
        if self._open:
            self._open = False
            self._stream.write("\n")
            self._stream.flush()

    def _line(self, done: int, total: int | None) -> str:
        text = self._text(done, total)
        room = shutil.get_terminal_size().columns - len(text) - 4
        width = min(_WIDEST_BAR, room)
        if not total or width < 5:
            return text
        filled = min(width, width * done // total)
        return f"{text} [{'#' * filled}{'.' * (width - filled)}]"

    def _text(self, done: int, total: int | None) -> str:
        elapsed_s = self._now() - self._started
        rate = done / elapsed_s if elapsed_s > 0 else 0.0
        share = f" {100 * done // total}%" if total else ""
        if not total:
            return f"{self._label}{share} {self._amount(done)}, {self._amount(rate)}/s"
        so_far = self._amount(done) if self._unit == "B" else str(done)
        return f"{self._label}{share} {so_far} of {self._amount(total)}, {self._amount(rate)}/s"

    def _amount(self, count: float) -> str:
        if self._unit == "B":
            return f"{count / 1e6:.1f} MB"
        return f"{count:.0f} {self._unit}" if isinstance(count, int) else f"{count:.1f} {self._unit}"
