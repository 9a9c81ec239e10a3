"""Explains a recorded request as `/debug/why` would have: replays until the KV manager has told all that it knows.

INVARIANT: asking changes no decision, so the explanation is the one that the recorded engine would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from asyncpage.messages import Granted, StepTokens, Why
from asyncpage.replay.difference import Difference
from asyncpage.replay.rerun import Rerun


class Explained:
    """`answer`: plain values by name, None when the request is not in the journal or was never looked up in the cache.

    `requests`: how many choices have the label. `difference`: where the replay had to stop, which may be before the
    request. `labels`: client-visible ids in the journal, by request.
    """

    def __init__(self, rerun: Rerun, label: str, on_progress: Callable[[int], None] = lambda done: None) -> None:
        self.answer: object = None
        self._rerun = rerun
        self._label = label
        self.difference: Difference | None = rerun.run(on_progress, self._look)
        self._ask()
        self.labels: Mapping[int, str] = rerun.stage.labels
        self.requests = sum(map(self._is_it, self.labels))

    def _look(self, message: object) -> None:
        """It is explained when it is let in and when it is over, before a bounded memory forgets it."""
        match message:
            case Granted() if any(self._is_it(admission.request) for admission in message.admitted):
                self._ask()
            case StepTokens() if any(self._is_it(end.request) for end in message.ends):
                self._ask()

    def _ask(self) -> None:
        answer = self._rerun.stage.ask(Why(self._label))
        if answer is not None:
            self.answer = answer

    def _is_it(self, request: int) -> bool:
        return self._label in (self._rerun.stage.labels.get(request), str(request))
