"""The hash chain with tail reuse: finds blocks by name, and looks inside one block where the names end.

The default prefix index. A lookup is a dictionary `get` a block; then the children of the last hit are compared with
the tokens that follow, and the longest common run inside a block is a donor to copy from, so that reuse is as fine
as a token tree's without token-sized pages. Names are not trusted: tokens are compared, a whole prompt in one go, and
each block must hang on the very block before it.

Siblings lie in the order of their tokens: whichever shares the longest run with given tokens stands next to where
those would be inserted. Tokens are ordered by their first appearance here and not by their ids, so that what is found
depends on which tokens are equal and on nothing else: a journal, which renames ids, replays to the same donors.

A node whose blocks are gone stays while something hangs on it, so that what is below is found again once an equal
block is there; models with sliding windows give up the front of a conversation first.

INVARIANT: a node can be reached only through the nodes that stand for everything before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from asyncpage.core.block_names import root_name
from asyncpage.core.prefix_index import Divergence, Listener, Match
from asyncpage.messages import LayerGroup, Prefix

_CHUNK = 256  # names looked up before looking whether one was missed
_MOST_ROOTS = 8  # other roots that an explanation looks into

_order_of = attrgetter("order")
_UNSEEN = b"\xff" * 4  # behind every rank
_CHILDLESS: list[Any] = []  # shared: most nodes get one child at most, and the last of a branch none


class _Node:
    """One block in every group, 0 where it is gone. `name` is empty for a tail.

    A root has no blocks, its key stands in `tokens`, and the digest of its key is its name. `parent` is None for a root
    and for what was forgotten. `order`: its place among siblings, set when it gets one. One that never held anything
    is kept in the dictionaries from when something comes behind it.
    """

    __slots__ = ("blocks", "children", "name", "order", "parent", "tokens")

    def __init__(self, name: bytes, tokens: bytes, blocks: list[int], parent: _Node | None) -> None:
        self.name = name
        self.tokens = tokens
        self.blocks = blocks
        self.parent = parent
        self.children: list[_Node] = _CHILDLESS
        self.order = b""


class PrefixChain:
    """Implements `PrefixIndex`; a branch is a node."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None:
        self.listener: Listener | None = None
        self._groups = tuple(groups)
        self._is_plain = len(groups) == 1 and groups[0].kind == "full"
        self._block_size = block_size
        self._width = 4 * block_size
        self._roots: dict[bytes, _Node] = {}
        self._nodes: dict[bytes, _Node] = {}
        self._places: dict[int, _Node] = {}
        self._ranks = _Ranks()

    def __len__(self) -> int:
        return len(self._places)

    # --- finding ------------------------------------------------------------------------------------------------------

    def match(self, prefix: Prefix, most_tokens: int) -> Match:
        root = self.begin(prefix.root)
        nodes = self._walk(root, prefix, most_tokens // self._block_size)
        length = self._held(nodes)
        branch = nodes[length - 1] if length else root
        donor, tail = self._donor(branch, prefix, length * self._block_size, most_tokens)
        return Match(self._blocks(nodes, length), branch, tuple(donor.blocks) if donor else (), tail)

    def begin(self, root: bytes) -> _Node:
        node = self._roots.get(root)
        return _Node(root_name(root), root, [], None) if node is None else node

    def holds(self, block: int) -> bool:
        return block in self._places

    def explain(self, prefix: Prefix) -> Divergence:
        root = self.begin(prefix.root)
        everything = len(prefix.tokens) // 4
        nodes = self._walk(root, prefix, everything // self._block_size)
        length = self._held(nodes)
        start = length * self._block_size
        child, tail = self._nearest(nodes[length - 1] if length else root, prefix.tokens[4 * start :])
        position = start + tail
        found = -1 if child is None or 4 * tail >= len(child.tokens) else _token(child.tokens, tail)
        elsewhere = 0
        for other in islice(self._roots.values(), _MOST_ROOTS):
            if other is not root:
                elsewhere = max(elsewhere, self._walk_tokens(other, prefix.tokens))
        if position >= everything or found < 0:
            return Divergence(position, -1, -1, -1, elsewhere if elsewhere > position else 0)
        expected = _token(prefix.tokens, position)
        return Divergence(position, position, expected, found, elsewhere if elsewhere > position else 0)

    def _walk(self, root: _Node, prefix: Prefix, most: int) -> list[_Node]:
        """The nodes that hold the first blocks of `prefix`, at most `most`."""
        names, get = prefix.names, self._nodes.get
        most = min(most, len(names), len(prefix.tokens) // self._width)
        nodes: list[_Node] = []
        for start in range(0, most, _CHUNK):
            part = [get(name) for name in names[start : min(start + _CHUNK, most)]]
            if None in part:
                nodes += part[: part.index(None)]  # type: ignore[arg-type]
                break
            nodes += part  # type: ignore[arg-type]
        if not nodes:
            return nodes
        # In one go 0.1 us a block; block by block 0.3.
        is_chain = [node.parent for node in nodes] == [root, *nodes[:-1]]
        if is_chain and prefix.tokens.startswith(b"".join([node.tokens for node in nodes])):
            return nodes
        return nodes[: self._true_length(root, nodes, prefix.tokens)]

    def _true_length(self, root: _Node, nodes: list[_Node], tokens: bytes) -> int:
        """How many of them really hold these tokens, each hanging on the one before."""
        for index, node in enumerate(nodes):
            before = nodes[index - 1] if index else root
            if node.parent is not before or not tokens.startswith(node.tokens, index * self._width):
                return index
        return len(nodes)

    def _held(self, nodes: list[_Node]) -> int:
        """The longest beginning of `nodes` that every group can serve the next token from."""
        length = len(nodes)
        if self._is_plain:
            blocks = [node.blocks[0] for node in nodes]
            return blocks.index(0) if 0 in blocks else length
        for group, spec in enumerate(self._groups):
            if spec.kind == "full":
                length = next((i for i in range(length) if not nodes[i].blocks[group]), length)
        while length and not all(
            nodes[i].blocks[group]
            for group, spec in enumerate(self._groups)
            if spec.kind == "window"
            for i in range(spec.first_needed(length * self._block_size, self._block_size), length)
        ):
            length -= 1
        return length

    def _blocks(self, nodes: list[_Node], length: int) -> tuple[tuple[int, ...], ...]:
        first = [spec.first_needed(length * self._block_size, self._block_size) for spec in self._groups]
        return tuple(
            (0,) * begin + tuple([node.blocks[group] for node in nodes[begin:length]])
            for group, begin in enumerate(first)
        )

    def _donor(self, branch: _Node, prefix: Prefix, start: int, most_tokens: int) -> tuple[_Node | None, int]:
        """The child of `branch` that holds the longest run of the tokens from `start` on, and the run's length."""
        if not branch.children:
            return None, 0
        child, tail = self._nearest(branch, prefix.tokens[4 * start : 4 * most_tokens])
        return (child, tail) if tail else (None, 0)

    def _nearest(self, branch: _Node, tokens: bytes) -> tuple[_Node | None, int]:
        tokens = tokens[: self._width]
        at = self._place(branch.children, tokens)
        best, longest = None, (0, -1)
        for child in branch.children[max(0, at - 1) : at + 1]:
            run = (_common_run(child.tokens, tokens), len(child.tokens))
            if run > longest and all(child.blocks):
                best, longest = child, run
        return best, longest[0]

    def _walk_tokens(self, node: _Node, tokens: bytes) -> int:
        """Tokens in whole blocks that hang on `node`, found without names."""
        for start in range(0, len(tokens) - self._width + 1, self._width):
            wanted = tokens[start : start + self._width]
            at = self._place(node.children, wanted)
            if at == len(node.children) or node.children[at].tokens != wanted:
                return start // 4
            node = node.children[at]
        return len(tokens) // self._width * self._block_size

    def _place(self, siblings: list[_Node], tokens: bytes) -> int:
        """Where `tokens` stand among siblings, or would stand; an only child stands in every place."""
        if len(siblings) < 2:
            return 0
        rank = self._ranks.get
        order = b"".join([rank(token, _UNSEEN) for token in memoryview(tokens).cast("i")])
        return bisect_left(siblings, order, key=_order_of)

    # --- holding and forgetting ---------------------------------------------------------------------------------------

    def publish(self, branch: _Node, name: bytes, tokens: bytes, blocks: Sequence[int]) -> _Node | None:
        nodes = self._nodes
        parent: _Node | None = branch if nodes.get(branch.name) is branch else self._kept(branch)
        if parent is None:
            return None
        node = nodes.get(name)
        if node is None:
            node = _Node(name, tokens, list(blocks), parent)
            if any(blocks):  # else it is kept when something comes behind it
                self._keep(node, parent)
                for block in blocks:
                    if block:
                        self._places[block] = node
                if self.listener is not None:
                    self.listener.stored(name, parent.name, tokens)
            return node
        if node.parent is not parent or node.tokens != tokens:
            return None
        if self.listener is not None and any(blocks) and not any(node.blocks):
            self.listener.stored(name, parent.name, tokens)
        for group, block in enumerate(blocks):
            if block and not node.blocks[group]:
                node.blocks[group] = block
                self._places[block] = node
        return node

    def publish_tail(self, branch: _Node, tokens: bytes, blocks: Sequence[int]) -> None:
        parent = self._kept(branch) if tokens and all(blocks) else None
        if parent is None:
            return
        _, run = self._nearest(parent, tokens)
        if 4 * run < len(tokens):
            node = _Node(b"", tokens, list(blocks), parent)
            for block in blocks:
                self._places[block] = node
            self._adopt(parent, node)

    def forget(self, block: int) -> None:
        node = self._places.pop(block, None)
        if node is not None:
            node.blocks[node.blocks.index(block)] = 0
            if not any(node.blocks):
                if node.name and self.listener is not None:
                    self.listener.removed(node.name)
                self._prune(node)

    def clear(self) -> None:
        for node in self._nodes.values():
            node.parent, node.children = None, _CHILDLESS
        for root in self._roots.values():
            root.children = _CHILDLESS
        self._roots.clear()
        self._nodes.clear()
        self._places.clear()
        if self.listener is not None:
            self.listener.cleared()

    def _kept(self, branch: _Node) -> _Node | None:
        """The node or root that stands for `branch` in the dictionaries, put there if it was not; None if none can."""
        if self._nodes.get(branch.name) is branch:
            return branch
        if branch.parent is None:
            return None if branch.blocks else self._roots.setdefault(branch.tokens, branch)
        way = [branch]
        while way[-1].parent is not None and self._nodes.get(way[-1].name) is not way[-1]:
            way.append(way[-1].parent)
        parent = self._kept(way.pop())
        while parent is not None and way:
            node = way.pop()
            same = self._nodes.get(node.name)
            if same is None:
                self._keep(node, parent)
            elif same.parent is not parent or same.tokens != node.tokens:
                return None
            parent = same or node
        return parent

    def _keep(self, node: _Node, parent: _Node) -> None:
        self._nodes[node.name] = node
        node.parent = parent
        if parent.children:
            self._adopt(parent, node)
        else:
            parent.children = [node]

    def _prune(self, node: _Node) -> None:
        """Take out what holds nothing and leads nowhere, from `node` up."""
        while (parent := node.parent) is not None and not node.children and not any(node.blocks):
            siblings = parent.children
            if len(siblings) == 1:
                parent.children = _CHILDLESS
            else:
                at = self._place(siblings, node.tokens)
                while siblings[at] is not node:
                    at += 1
                del siblings[at]
            if node.name:
                del self._nodes[node.name]
            node.parent = None
            node = parent
        if parent is None and not node.children:
            self._roots.pop(node.tokens, None)

    def _adopt(self, parent: _Node, node: _Node) -> None:
        siblings = parent.children
        if not siblings:
            parent.children = [node]
            return
        ranks = self._ranks
        for newcomer in (siblings[0], node) if len(siblings) == 1 else (node,):
            newcomer.order = b"".join([ranks[token] for token in memoryview(newcomer.tokens).cast("i")])
        insort(siblings, node, key=_order_of)


class _Ranks(dict[int, bytes]):
    """Tokens by their first appearance among siblings, as bytes that compare like the number."""

    def __missing__(self, token: int) -> bytes:
        rank = self[token] = len(self).to_bytes(4, "big")
        return rank


def _common_run(a: bytes, b: bytes) -> int:
    """Tokens that two runs of int32 begin with alike."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (8 * size - differing.bit_length()) // 32


def _token(tokens: bytes, index: int) -> int:
    return int.from_bytes(tokens[4 * index : 4 * index + 4], "little", signed=True)
