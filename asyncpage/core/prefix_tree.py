"""The radix tree: finds blocks by the tokens themselves, whatever their names.

The second prefix index. A lookup walks the token tree as far as a prompt leads: the full blocks on the way are shared,
and any block below that begins with the tokens behind them is a donor to copy from. Names are kept for listeners only.

A block that is forgotten before what hangs on it leaves an empty place: a full group then matches no further than
that, until the same tokens are published again. An empty place goes when nothing hangs on it any more.

INVARIANT: every block that is held has its place in the tree, at the end of exactly the tokens that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice

from asyncpage.core.block_names import root_name
from asyncpage.core.prefix_index import Contents, Divergence, Listener, Match
from asyncpage.core.token_tree import TOKEN, Edge, Place, TokenTree
from asyncpage.messages import LayerGroup, Prefix

_MOST_ROOTS = 64  # other roots that an explanation looks into


class _Blank:
    """A block that no group had any more when it was published: planted with the next one behind it."""

    __slots__ = ("branch", "name", "tokens")

    def __init__(self, branch: _Branch, name: bytes, tokens: bytes) -> None:
        self.branch = branch
        self.name = name
        self.tokens = tokens


_Branch = Place | _Blank | bytes  # bytes: the key of a root


class PrefixTree:
    """Implements `PrefixIndex`."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None:
        self.listener: Listener | None = None
        self.tells_stored = True
        self._groups = tuple(groups)
        self._block_size = block_size
        self._tree = TokenTree(block_size, len(groups))
        self._places: dict[int, Place] = {}
        self.holds = self._places.__contains__
        self._names: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._places)

    # --- finding ------------------------------------------------------------------------------------------------------

    def match(self, prefix: Prefix, most_tokens: int) -> Match:
        edge, depth, path = self._tree.walk(prefix.root, prefix.tokens, most_tokens)
        blocks = self._servable(path)
        length = len(blocks[0])
        donors, tail = self._donors(edge, depth, length)
        return Match(blocks, path[length - 1] if length else prefix.root, donors, tail)

    def begin(self, root: bytes) -> _Branch:
        return root

    def held(self, names: Sequence[bytes]) -> Set[bytes]:
        return self._names.intersection(names)

    def contents(self, block: int) -> Contents | None:
        place = self._places.get(block)
        if place is None or place.edge is None:
            return None
        size, group = self._block_size, place.blocks.index(block)
        start = (place.end - 1) // size * size
        edge: Edge | bytes = place.edge
        path, tokens = list[Place](), b""
        while isinstance(edge, Edge):
            tokens = bytes(edge.run) + tokens if edge.end > start else tokens
            path = [*edge.full, *path]
            edge = edge.parent
        before = path[: start // size]
        held = len(tokens) - TOKEN * (place.edge.end - place.end)
        tokens = tokens[held - TOKEN * (place.end - start) : held]
        return Contents(place.name, before[-1].name if before else b"", tokens, tuple(p.blocks[group] for p in before))

    def explain(self, prefix: Prefix, match: Match) -> Divergence:
        known = len(prefix.tokens) // TOKEN
        edge, depth, path = self._tree.walk(prefix.root, prefix.tokens, known)
        length = len(self._servable(path)[0])
        matched = length * self._block_size + self._donors(edge, depth, length)[1]
        elsewhere = matched
        for root in islice(self._tree.roots, _MOST_ROOTS):
            if root != prefix.root:
                there = self._tree.walk(root, prefix.tokens, known)[2]
                if len(there) * self._block_size > elsewhere:
                    elsewhere = max(elsewhere, len(self._servable(there)[0]) * self._block_size)
        position, expected, found = -1, -1, -1
        if depth < known and (token := edge.token(depth)):
            expected_token = prefix.tokens[TOKEN * depth : TOKEN * (depth + 1)]
            position, expected, found = depth, _number(expected_token), _number(token)
        return Divergence(matched, position, expected, found, elsewhere if elsewhere > matched else 0)

    def _servable(self, path: Sequence[Place]) -> tuple[tuple[int, ...], ...]:
        """The blocks of the longest beginning of `path` behind which every group can serve the next token."""
        if not path:
            return ((),) * len(self._groups)
        size = self._block_size
        columns = tuple(zip(*[place.blocks for place in path], strict=True))
        length = min(
            column.index(0) if spec.kind == "full" and 0 in column else len(path)
            for spec, column in zip(self._groups, columns, strict=True)
        )
        longer = length + 1
        while length < longer:  # until no group's window has a gap
            longer = length
            for spec, column in zip(self._groups, columns, strict=True):
                first = spec.first_needed(length * size, size)
                if 0 in column[first:length]:
                    length = next(i for i in range(length - 1, -1, -1) if not column[i])
        needed = [spec.first_needed(length * size, size) for spec in self._groups]
        return tuple((0,) * first + column[first:length] for first, column in zip(needed, columns, strict=True))

    def _donors(self, edge: Edge, depth: int, length: int) -> tuple[tuple[int, ...], int]:
        """One block a group that hold the most tokens behind `length` full blocks, and how many those are.

        `depth` tokens lead to `edge`.
        """
        start = length * self._block_size
        depth = min(depth, start + self._block_size)
        while depth > start:
            if depth > edge.start:
                place = self._holder(edge, depth)
                if place is not None:
                    return tuple(place.blocks), depth - start
                depth = max([edge.start, *(tail.end for tail in edge.tails if tail.end < depth)])
            else:
                assert isinstance(edge.parent, Edge)  # a root starts at 0
                edge = edge.parent
        return (), 0

    def _holder(self, edge: Edge, depth: int) -> Place | None:
        """A block that all groups hold, which has the last of the `depth` tokens that lead to `edge` in it."""
        size = self._block_size
        index = (depth - 1) // size
        edges = [edge]
        while edges:
            edge = edges.pop()
            at = index - edge.start // size
            for place in (*edge.full[at : at + 1], *edge.tails):
                if place.end >= depth and (place.end - 1) // size == index and all(place.blocks):
                    return place
            if edge.end < (index + 1) * size:
                edges += edge.children.values()
        return None

    # --- holding and forgetting ---------------------------------------------------------------------------------------

    def publish(self, branch: _Branch, name: bytes, tokens: bytes, blocks: Sequence[int]) -> _Branch | None:
        if not any(blocks):
            return _Blank(branch, name, tokens)
        parent = self._planted(branch) if isinstance(branch, _Blank) else branch
        place = None if parent is None else self._tree.plant(parent, tokens, name)
        if parent is None or place is None:
            return None
        if not any(place.blocks):
            self._names.add(place.name)
            if self.tells_stored and self.listener is not None:
                self.listener.stored(name, root_name(parent) if isinstance(parent, bytes) else parent.name, tokens)
        self._fill(place, blocks)
        return place

    def publish_tail(self, branch: _Branch, tokens: bytes, blocks: Sequence[int]) -> None:
        parent = self._planted(branch) if tokens and all(blocks) else None
        end = None if parent is None else self._tree.grow(parent, tokens)
        if end is not None and self._holder(*end) is None:
            edge, depth = end
            tail = Place(b"", depth, edge, list(blocks))
            edge.tails.append(tail)
            self._places.update(dict.fromkeys(blocks, tail))

    def forget(self, block: int) -> None:
        place = self._places.pop(block, None)
        if place is None or place.edge is None:
            return
        place.blocks[place.blocks.index(block)] = 0
        if any(place.blocks):
            return
        edge = place.edge
        if not place.name:
            edge.tails.remove(place)
            place.edge = None
        else:
            self._names.discard(place.name)
            if self.listener is not None:
                self.listener.removed(place.name)
        self._tree.trim(edge)

    def clear(self) -> None:
        self._tree.clear()
        self._places.clear()
        self._names.clear()
        if self.listener is not None:
            self.listener.cleared()

    def _planted(self, branch: _Branch) -> Place | bytes | None:
        """The place of `branch` once what was blank up to there is in the tree; None if it was forgotten."""
        blanks = []
        while isinstance(branch, _Blank):
            blanks.append(branch)
            branch = branch.branch
        place: Place | bytes | None = branch
        for blank in reversed(blanks):
            place = None if place is None else self._tree.plant(place, blank.tokens, blank.name)
        return place

    def _fill(self, place: Place, blocks: Sequence[int]) -> None:
        for group, block in enumerate(blocks):
            if block and not place.blocks[group]:
                place.blocks[group] = block
                self._places[block] = place


def _number(token: bytes) -> int:
    return int.from_bytes(token, "little", signed=True)
