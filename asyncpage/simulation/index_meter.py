"""Stands around a prefix index and counts what it is asked, what it answers and what that costs.

`compare` puts one around each kind of index. It answers as the index within does.

INVARIANT: what is measured is the index's own time; what the meter looks up beside it is not in it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from hashlib import sha256
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from asyncpage.core.block_names import root_name
from asyncpage.core.prefix_index import Branch, Contents, Divergence, Listener, Match, PrefixIndex
from asyncpage.messages import Prefix
from asyncpage.simulation.held_tokens import TOKEN, Held, HeldTokens


@dataclass(slots=True)
class IndexCounts:
    """Times in seconds. Tokens are the prompts'; blocks are pool blocks, one a layer group.

    `reusable`: tokens of the prompts looked up that the cache held. `reused`: of them found; `copied`: found inside
    one block, to be copied. `named`, `nameless`: full blocks published, and tails. `true_names`: names that are the
    digest of the tokens alone. `duplicates`: blocks that were computed though an equal one was there.
    """

    lookups: int = 0
    lookup_s: float = 0.0
    prompt_tokens: int = 0
    reusable: int = 0
    reused: int = 0
    copied: int = 0
    named: int = 0
    nameless: int = 0
    true_names: int = 0
    publish_s: float = 0.0
    duplicates: int = 0
    evictions: int = 0
    evict_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Branch:
    """The inner index's branch, and the same place among the held tokens."""

    inner: Branch
    held: Held


class IndexMeter:
    """Implements `PrefixIndex` around `inner`. `now`: seconds of work, real ones."""

    def __init__(self, inner: PrefixIndex, *, block_size: int, groups: int, now: Callable[[], float]) -> None:
        self.counts = IndexCounts()
        self._inner = inner
        self._block_size = block_size
        self._groups = groups
        self._now = now
        self._held = HeldTokens(block_size, groups)
        self._look_s = min(-(now() - now()) for _ in range(1000))  # what one look at the clock takes

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def listener(self) -> Listener | None:
        return self._inner.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._inner.listener = listener

    @property
    def tells_stored(self) -> bool:
        return self._inner.tells_stored

    @tells_stored.setter
    def tells_stored(self, tells_stored: bool) -> None:
        self._inner.tells_stored = tells_stored

    def match(self, prefix: Prefix, most_tokens: int) -> Match:
        began = self._now()
        found = self._inner.match(prefix, most_tokens)
        counts = self.counts
        counts.lookup_s += self._now() - began - self._look_s
        counts.lookups += 1
        counts.prompt_tokens += len(prefix.tokens) // TOKEN
        root = self._held.root(prefix.root, root_name(prefix.root))
        path, tail = self._held.reusable(root, prefix.tokens[: TOKEN * most_tokens])
        whole = len(found.blocks[0])
        counts.reusable += len(path) * self._block_size + tail
        counts.reused += whole * self._block_size + found.tail
        counts.copied += found.tail
        return replace(found, branch=_Branch(found.branch, path[whole - 1] if whole else root))

    def begin(self, root: bytes) -> _Branch:
        return _Branch(self._inner.begin(root), self._held.root(root, root_name(root)))

    def publish(self, branch: _Branch, name: bytes, tokens: bytes, blocks: Sequence[int]) -> _Branch | None:
        began = self._now()
        behind = self._inner.publish(branch.inner, name, tokens, blocks)
        counts = self.counts
        counts.publish_s += self._now() - began - self._look_s
        counts.named += 1
        counts.true_names += name == sha256(branch.held.name + tokens).digest()
        if behind is None:
            return None
        kept = self._kept(blocks)
        counts.duplicates += sum(map(bool, blocks)) - len(kept)
        return _Branch(behind, self._held.hold(branch.held, tokens, name, kept))

    def publish_tail(self, branch: _Branch, tokens: bytes, blocks: Sequence[int]) -> None:
        began = self._now()
        self._inner.publish_tail(branch.inner, tokens, blocks)
        self.counts.publish_s += self._now() - began - self._look_s
        self.counts.nameless += 1
        if kept := self._kept(blocks):
            self._held.hold(branch.held, tokens, b"", kept)

    def holds(self, block: int) -> bool:
        return self._inner.holds(block)

    def contents(self, block: int) -> Contents | None:
        return self._inner.contents(block)

    def held(self, names: Sequence[bytes]) -> Set[bytes]:
        return self._inner.held(names)

    def forget(self, block: int) -> None:
        began = self._now()
        self._inner.forget(block)
        self.counts.evict_s += self._now() - began - self._look_s
        self.counts.evictions += 1
        self._held.forget(block)

    def clear(self) -> None:
        self._inner.clear()
        self._held.clear()

    def explain(self, prefix: Prefix, match: Match) -> Divergence:
        return self._inner.explain(prefix, replace(match, branch=match.branch.inner))

    def bytes_a_token(self) -> float:
        """Memory of the inner index for each token that it holds in a group; 0 when it holds none."""
        tokens = self._held.tokens / self._groups
        listener, self._inner.listener = self._inner.listener, None  # whoever listens is no part of it
        size = _deep_size(self._inner)
        self._inner.listener = listener
        return size / tokens if tokens else 0.0

    def _kept(self, blocks: Sequence[int]) -> list[int]:
        return [block for block in blocks if block and self._inner.holds(block)]


def _deep_size(thing: object) -> int:
    """Bytes of everything that can be reached from `thing`, classes and functions left out."""
    shared = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
    seen: set[int] = set()
    found = [thing]
    total = 0
    while found:
        item = found.pop()
        if id(item) in seen or isinstance(item, shared):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        found += gc.get_referents(item)
    return total
