"""How many full blocks of each waiting request are cached, kept up to date for policies that order by it.

The KV manager makes a prefix index's listener of it, tells it which requests wait, and drains what has changed once a
settlement; the scheduler moves those requests in its queue. Nobody is matched again: an event only notes the name,
and `drain` looks at those whose next block was stored, or of whose held blocks one was removed.

INVARIANT: after `drain`, each watched request has been told the length of the longest beginning of its names that the
index holds without a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from asyncpage.messages import RequestId

Requests = dict[RequestId, None]  # an ordered set, so that what is drained has the same order in a replay


@dataclass(slots=True)
class _Watched:
    names: tuple[bytes, ...]
    blocks: int
    told: int = 0


class HitWatch:
    """Implements `Listener`. It must hear an index from its first block on.

    An event costs 1 us and a drain 5 us for each request that it moves, however many are watched. What lost: moving
    requests at each event (32 blocks of a system prompt that 5,000 wait for are 160,000 moves, here 5,000), and
    matching those that wait again (10 us each, all of them at every step).
    """

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}  # name to its parent's
        self._children: dict[bytes, dict[bytes, None]] = {}  # held ones of a name that is held, or was
        self._watched: dict[RequestId, _Watched] = {}
        self._missing: dict[bytes, Requests] = {}  # by the first name that is not held
        self._last: dict[bytes, Requests] = {}  # by the name before that
        self._touched: dict[bytes, None] = {}  # names stored or removed since the last drain that matter to somebody
        self._cuts: set[bytes] = set()  # names that are not held, though held ones hang on them
        self._moved: Requests = {}

    def __len__(self) -> int:
        """Requests that are watched."""
        return len(self._watched)

    def watch(self, request: RequestId, names: tuple[bytes, ...]) -> None:
        """It waits; `names` of its full blocks. The scheduler takes it for one with no hits until it is told."""
        self.unwatch(request)
        watched = _Watched(names, 0)
        watched.blocks = self._blocks_from(watched, 0)
        self._watched[request] = watched
        self._enter(request, watched)
        self._moved[request] = None

    def unwatch(self, request: RequestId) -> None:
        """It waits no longer. One that is not watched is let be."""
        watched = self._watched.pop(request, None)
        if watched is not None:
            self._leave(request, watched)
            self._moved.pop(request, None)

    def stored(self, name: bytes, parent: bytes, tokens: bytes) -> None:
        self._held[name] = parent
        self._cuts.discard(name)
        siblings = self._children.get(parent)
        if siblings is None:
            self._children[parent] = {name: None}
        else:
            siblings[name] = None
        if name in self._missing:
            self._touched[name] = None

    def removed(self, name: bytes) -> None:
        parent = self._held.pop(name, None)
        if parent is None:
            return
        siblings = self._children[parent]
        del siblings[name]
        if not siblings:
            del self._children[parent]
            self._cuts.discard(parent)
        if name in self._children:
            self._cuts.add(name)
            self._touched[name] = None
        elif name in self._last:
            self._touched[name] = None

    def cleared(self) -> None:
        self._held.clear()
        self._children.clear()
        self._cuts.clear()
        self._touched.clear()
        for request in [request for requests in self._last.values() for request in requests]:
            self._move(request, 0)

    def drain(self) -> tuple[tuple[RequestId, int], ...]:
        """The requests whose hits differ from what was told of them, each with its full blocks that are cached."""
        ahead: Requests = {}
        behind: Requests = {}
        for name in self._touched:
            if name in self._held:
                ahead.update(self._missing.get(name, ()))
            else:
                for other in self._held_below(name):
                    behind.update(self._last.get(other, ()))
        self._touched.clear()
        for request in ahead:
            watched = self._watched[request]
            self._move(request, self._blocks_from(watched, watched.blocks))
        for request in behind:
            watched = self._watched[request]
            self._move(request, self._blocks_from(watched, 0) if self._cuts else self._blocks_before(watched))
        changed = []
        for request in self._moved:
            watched = self._watched[request]
            if watched.blocks != watched.told:
                watched.told = watched.blocks
                changed.append((request, watched.blocks))
        self._moved.clear()
        return tuple(changed)

    def _blocks_from(self, watched: _Watched, blocks: int) -> int:
        """Its full blocks that are held without a gap; the first `blocks` are known to be."""
        names, held = watched.names, self._held
        while blocks < len(names) and names[blocks] in held:
            blocks += 1
        return blocks

    def _blocks_before(self, watched: _Watched) -> int:
        """The same when no branch is cut in its middle: whatever is missing is at the end."""
        names, held, blocks = watched.names, self._held, watched.blocks
        while blocks and names[blocks - 1] not in held:
            blocks -= 1
        return blocks

    def _held_below(self, name: bytes) -> Iterator[bytes]:
        """A name that was removed, and those held that hang on it: none, unless a branch was cut in its middle."""
        names = [name]
        while names:
            name = names.pop()
            yield name
            names += self._children.get(name, ())

    def _move(self, request: RequestId, blocks: int) -> None:
        watched = self._watched[request]
        self._leave(request, watched)
        watched.blocks = blocks
        self._enter(request, watched)
        self._moved[request] = None

    def _enter(self, request: RequestId, watched: _Watched) -> None:
        names, blocks = watched.names, watched.blocks
        if blocks < len(names):
            self._missing.setdefault(names[blocks], {})[request] = None
        if blocks:
            self._last.setdefault(names[blocks - 1], {})[request] = None

    def _leave(self, request: RequestId, watched: _Watched) -> None:
        names, blocks = watched.names, watched.blocks
        if blocks < len(names):
            _take(self._missing, names[blocks], request)
        if blocks:
            _take(self._last, names[blocks - 1], request)


def _take(by_name: dict[bytes, Requests], name: bytes, request: RequestId) -> None:
    requests = by_name[name]
    del requests[request]
    if not requests:
        del by_name[name]
