"""A radix tree over tokens whose edges carry places where blocks end.

Used by `prefix_tree` only, which knows what groups and matches are. An edge holds a run of tokens that may end at any
token. Edges split where sequences part, and join again when one side is gone. A place lies on the edge that holds the
last token of its block, so what two sequences begin alike is there once.

Whole runs are compared at once. What lost: walking one token at a time (100 times slower), and an edge a block (the
chain's shape without its names). An edge that splits near its beginning hands over all of its places, 25 ns each;
handing over the smaller side would save that for twice the code.

INVARIANT: a leaf's run ends where a place ends that holds a block; on the way there is a place at every block's end.
"""

from __future__ import annotations

from collections.abc import Iterable

TOKEN = 4  # bytes, int32 little-endian
_SHORT = 256  # bytes; shorter runs are compared as two numbers


class Place:
    """Where a sequence of tokens ends in a block: a full one, or a tail, which has no name.

    `end`: tokens from the root to there. `blocks`: one a group, 0 where the group holds none. `edge`: the one it lies
    on; None once it is no longer in the tree.
    """

    __slots__ = ("blocks", "edge", "end", "name")

    def __init__(self, name: bytes, end: int, edge: Edge, blocks: list[int]) -> None:
        self.name = name
        self.end = end
        self.edge: Edge | None = edge
        self.blocks = blocks


class Edge:
    """Tokens `start` .. `end` of every sequence that goes on behind them. A root has none, and its key as parent.

    `full`: the places at the ends of blocks, the first behind `start`; `tails`: the other places, in any order.
    `children`: by the first token of their runs.
    """

    __slots__ = ("children", "end", "full", "parent", "run", "start", "tails")

    def __init__(self, parent: Edge | bytes, start: int, run: bytes = b"") -> None:
        self.parent = parent
        self.start = start
        self.end = start + len(run) // TOKEN
        self.run = bytearray(run)
        self.full: list[Place] = []
        self.tails: list[Place] = []
        self.children: dict[bytes, Edge] = {}

    def token(self, depth: int) -> bytes:
        """One that follows `depth` tokens that lead to this edge; nothing when none does."""
        at = TOKEN * (depth - self.start)
        return bytes(self.run[at : at + TOKEN]) or next(iter(self.children), b"")

    def take(self, full: Iterable[Place], tails: Iterable[Place], children: dict[bytes, Edge]) -> None:
        """What lay on another edge, or hung on it, now does on this one."""
        self.full += full
        self.tails += tails
        self.children.update(children)
        for place in (*full, *tails):
            place.edge = self
        for child in children.values():
            child.parent = self


class TokenTree:
    """One tree a root. `roots`: those that anything hangs on."""

    def __init__(self, block_size: int, groups: int) -> None:
        self.roots: dict[bytes, Edge] = {}
        self._block_size = block_size
        self._groups = groups

    def walk(self, root: bytes, tokens: bytes, most: int) -> tuple[Edge, int, list[Place]]:
        """As far as at most `most` of `tokens` lead: the edge, how many they are, and the full blocks' places."""
        edge, depth, path = self.roots.get(root) or Edge(root, 0), 0, list[Place]()
        most = min(most, len(tokens) // TOKEN)
        while depth < most:
            child = edge.children.get(tokens[TOKEN * depth : TOKEN * (depth + 1)])
            if child is None:
                break
            edge = child
            depth += common_run(edge.run, tokens[TOKEN * depth : TOKEN * min(most, edge.end)])
            path += edge.full[: depth // self._block_size - edge.start // self._block_size]
            if depth < edge.end:
                break
        return edge, depth, path

    def grow(self, begin: Place | bytes, tokens: bytes) -> tuple[Edge, int] | None:
        """Make sure that `tokens` follow a place or root; the edge and depth where they end, None if it is gone."""
        if isinstance(begin, bytes):
            edge, depth = self.roots.setdefault(begin, Edge(begin, 0)), 0
        elif begin.edge is not None:
            edge, depth = begin.edge, begin.end
        else:
            return None
        end = depth + len(tokens) // TOKEN
        while depth < end:
            rest = tokens[TOKEN * (depth - end) :]
            if depth < edge.end:
                at = TOKEN * (depth - edge.start)
                there = edge.run[at : at + len(rest)]
                depth += common_run(there, rest[: len(there)])
                if depth < min(edge.end, end):
                    self._split(edge, depth)
            elif rest[:TOKEN] in edge.children:
                edge = edge.children[rest[:TOKEN]]
            else:
                if edge.children or isinstance(edge.parent, bytes):
                    edge.children[rest[:TOKEN]] = edge = Edge(edge, depth)
                edge.run += rest
                edge.end = depth = end
        return edge, depth

    def plant(self, begin: Place | bytes, tokens: bytes, name: bytes) -> Place | None:
        """The place of a full block behind another or a root, as it is or made; None if what it follows is gone."""
        if (
            isinstance(begin, Place)
            and (edge := begin.edge) is not None
            and edge.end == begin.end
            and not edge.children
        ):
            edge.run += tokens  # what `grow` would do, at a third of its cost: most blocks lengthen a leaf
            edge.end += self._block_size
            place = Place(name, edge.end, edge, [0] * self._groups)
            edge.full.append(place)
            return place
        end = self.grow(begin, tokens)
        if end is None:
            return None
        edge, depth = end
        at = depth // self._block_size - edge.start // self._block_size - 1
        if at == len(edge.full):
            edge.full.append(Place(name, depth, edge, [0] * self._groups))
        return edge.full[at]

    def trim(self, edge: Edge) -> None:
        """A place on `edge` has lost its last block: what leads to no block any more goes."""
        while isinstance(edge.parent, Edge):
            if edge.children:
                if len(edge.children) == 1:
                    self._join(edge)
                return
            end = max(tail.end for tail in edge.tails) if edge.tails else edge.start
            full = edge.full
            while full and full[-1].end > end and not any(full[-1].blocks):
                full.pop().edge = None
            if full and full[-1].end > end:
                end = full[-1].end
            if end > edge.start:
                del edge.run[TOKEN * (end - edge.start) :]
                edge.end = end
                return
            del edge.parent.children[bytes(edge.run[:TOKEN])]
            edge = edge.parent
        if not edge.children:
            del self.roots[edge.parent]

    def clear(self) -> None:
        """No place is in the tree any more."""
        edges = list(self.roots.values())
        for edge in edges:  # grows as it goes
            edges += edge.children.values()
            for place in (*edge.full, *edge.tails):
                place.edge = None
        self.roots.clear()

    def _split(self, edge: Edge, depth: int) -> None:
        """Cut an edge in two: what lies behind `depth` tokens becomes its only child's."""
        cut, count = TOKEN * (depth - edge.start), depth // self._block_size - edge.start // self._block_size
        lower = Edge(edge, depth, bytes(edge.run[cut:]))
        lower.take(edge.full[count:], [tail for tail in edge.tails if tail.end > depth], edge.children)
        del edge.run[cut:], edge.full[count:]
        edge.end = depth
        edge.tails = [tail for tail in edge.tails if tail.end <= depth]
        edge.children = {bytes(lower.run[:TOKEN]): lower}

    def _join(self, edge: Edge) -> None:
        (child,) = edge.children.values()
        edge.run += child.run
        edge.end = child.end
        edge.children = {}
        edge.take(child.full, child.tails, child.children)


def common_run(run: bytearray, tokens: bytes) -> int:
    """Tokens that both begin with; `tokens` is not the longer one."""
    if run.startswith(tokens):
        return len(tokens) // TOKEN
    same, differs = 0, len(tokens)
    while differs - same > _SHORT:
        middle = (same + differs) // 2
        if run[same:middle] == tokens[same:middle]:
            same = middle
        else:
            differs = middle
    difference = int.from_bytes(run[same:differs], "big") ^ int.from_bytes(tokens[same:differs], "big")
    return (differs - (difference.bit_length() + 7) // 8) // TOKEN
