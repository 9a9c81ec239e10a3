"""The hash chain with tail reuse: finds blocks by name, and looks inside one block where the names end.

The default prefix index. A lookup searches a dictionary for the last name that is held; then the children of that one
are compared with the tokens that follow, and the longest common run inside a block is a donor to copy from, so that
reuse is as fine as a token tree's without token-sized pages. Names are not trusted: tokens are compared, a whole prompt
in one go, and each block must hang on the very block before it.

Siblings lie in the order of their tokens: whichever shares the longest run with given tokens stands next to where
those would be inserted. Tokens are ordered by their first appearance here and not by their ids, so that what is found
depends on which tokens are equal and on nothing else: a journal, which renames ids, replays to the same donors.

A node whose blocks are gone stays while something hangs on it, so that what is below is found again once an equal
block is there; models with sliding windows give up the front of a conversation first.

INVARIANT: a node can be reached only through the nodes that stand for everything before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence, Set
from itertools import islice, repeat
from operator import attrgetter

from asyncpage.core.block_names import root_name
from asyncpage.core.prefix_index import Contents, Divergence, Listener, Match
from asyncpage.messages import LayerGroup, Prefix

_MOST_ROOTS = 8  # other roots that an explanation looks into

_order_of = attrgetter("order")
_UNSEEN = b"\xff" * 4  # behind every rank
_NO_NAMES: Set[bytes] = frozenset()


class _Node:
    """One block in every group, 0 where it is gone. `name` is empty for a tail.

    A root has no blocks, its key stands in `tokens`, and the digest of its key is its name. `parent` is None for a root
    and for what was forgotten. `children`: a list once there are two of them, and then each has its `order` there.
    `is_kept`: it is in the dictionaries; one that never held anything is from when something comes behind it.
    """

    __slots__ = ("blocks", "children", "is_kept", "name", "order", "parent", "tokens")

    order: bytes

    def __init__(self, name: bytes, tokens: bytes, blocks: tuple[int, ...], parent: _Node | None) -> None:
        self.name = name
        self.tokens = tokens
        self.blocks = blocks
        self.parent = parent
        self.children: tuple[_Node, ...] | list[_Node] = ()
        self.is_kept = False


class PrefixChain:
    """Implements `PrefixIndex`; a branch is a node."""

    def __init__(self, groups: Sequence[LayerGroup], block_size: int) -> None:
        self.listener: Listener | None = None
        self.tells_stored = True
        self._groups = tuple(groups)
        self._is_plain = len(groups) == 1 and groups[0].kind == "full"
        self._block_size = block_size
        self._width = 4 * block_size
        self._gone = (0,) * len(groups)
        self._roots: dict[bytes, _Node] = {}
        self._nodes: dict[bytes, _Node] = {}
        self._places: dict[int, _Node] = {}
        self.holds = self._places.__contains__  # asked for each block that anybody gives back
        self._ranks = _Ranks()

    def __len__(self) -> int:
        return len(self._places)

    # --- finding ------------------------------------------------------------------------------------------------------

    def match(self, prefix: Prefix, most_tokens: int) -> Match:
        root = self.begin(prefix.root)
        nodes = self._walk(root, prefix, most_tokens // self._block_size)
        blocks = self._held(nodes)
        length = len(blocks[0])
        branch = nodes[length - 1] if length else root
        if not branch.children:
            return Match(blocks, branch, seen=_NOTHING)
        start = length * self._block_size
        child, tail = near = self._nearest(branch, prefix.tokens[4 * start : 4 * most_tokens])
        seen = near if start + self._block_size <= most_tokens else None
        if child is None or not tail:
            return Match(blocks, branch, seen=seen)
        return Match(blocks, branch, child.blocks, tail, seen)

    def begin(self, root: bytes) -> _Node:
        node = self._roots.get(root)
        return _Node(root_name(root), root, (), None) if node is None else node

    def held(self, names: Sequence[bytes]) -> Set[bytes]:
        nodes, gone = self._nodes, self._gone
        if nodes.keys().isdisjoint(names):
            return _NO_NAMES
        return {name for name in names if (node := nodes.get(name)) is not None and node.blocks != gone}

    def contents(self, block: int) -> Contents | None:
        node = self._places.get(block)
        if node is None or node.parent is None:
            return None
        group, before, parent = node.blocks.index(block), [], node.parent
        way = parent
        while way.parent is not None:
            before.append(way.blocks[group])
            way = way.parent
        return Contents(node.name, parent.name if before else b"", node.tokens, tuple(reversed(before)))

    def explain(self, prefix: Prefix, match: Match) -> Divergence:
        everything = len(prefix.tokens) // 4
        branch, start, seen = match.branch, len(match.blocks[0]) * self._block_size, match.seen
        after = prefix.names[start // self._block_size :][:1]
        if after and after[0] in self._nodes:  # it was not asked for, or a block before it is gone
            root = self.begin(prefix.root)
            nodes = self._walk(root, prefix, everything // self._block_size)
            length = len(self._held(nodes)[0])
            branch, start, seen = nodes[length - 1] if length else root, length * self._block_size, None
        child, tail = self._nearest(branch, prefix.tokens[4 * start :]) if seen is None else seen
        position = start + tail
        elsewhere = 0
        for other in islice(self._roots.values(), _MOST_ROOTS):
            if other.tokens != prefix.root:
                elsewhere = max(elsewhere, self._walk_tokens(other, prefix.tokens))
        elsewhere = elsewhere if elsewhere > position else 0
        if position >= everything or child is None or 4 * tail >= len(child.tokens):
            return Divergence(position, -1, -1, -1, elsewhere)
        expected, found = _token(prefix.tokens, position), _token(child.tokens, tail)
        return Divergence(position, position, expected, found, elsewhere)

    def _walk(self, root: _Node, prefix: Prefix, most: int) -> list[_Node]:
        """The nodes that hold the first blocks of `prefix`, at most `most`."""
        names, get = prefix.names, self._nodes.get
        length = min(most, len(names), len(prefix.tokens) // self._width)
        # A node is there while anything behind it is, so the last one can be searched for, the very last first, and
        # from there the parents lead back: a few names of a prompt are looked up instead of all.
        last = get(names[length - 1]) if length else None
        if last is None:
            low = 0
            while low < length - 1:
                middle = (low + length - 1) // 2
                node = get(names[middle])
                if node is None:
                    length = middle + 1
                else:
                    low, last = middle + 1, node
            if last is None:
                return []
            length = low
        nodes: list[_Node] = []
        node = last
        while node is not None and node is not root:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        if node is root and len(nodes) == length and prefix.tokens.startswith(b"".join([n.tokens for n in nodes])):
            return nodes
        # Names lie.
        nodes = [node for node in map(get, names[:length]) if node is not None]
        return nodes[: self._true_length(root, nodes, prefix.tokens)]

    def _true_length(self, root: _Node, nodes: list[_Node], tokens: bytes) -> int:
        """How many of them really hold these tokens, each hanging on the one before."""
        for index, node in enumerate(nodes):
            before = nodes[index - 1] if index else root
            if node.parent is not before or not tokens.startswith(node.tokens, index * self._width):
                return index
        return len(nodes)

    def _held(self, nodes: list[_Node]) -> tuple[tuple[int, ...], ...]:
        """The blocks of the longest beginning of `nodes` that every group can serve the next token from."""
        if self._is_plain:
            blocks = [node.blocks[0] for node in nodes]
            return (tuple(blocks[: blocks.index(0)] if 0 in blocks else blocks),)
        length = len(nodes)
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
        first = [spec.first_needed(length * self._block_size, self._block_size) for spec in self._groups]
        return tuple(
            (0,) * begin + tuple([node.blocks[group] for node in nodes[begin:length]])
            for group, begin in enumerate(first)
        )

    def _nearest(self, branch: _Node, tokens: bytes) -> tuple[_Node | None, int]:
        """The child that holds the longest run of these tokens, and the run's length."""
        children = branch.children
        if not children:
            return _NOTHING
        tokens = tokens[: self._width]
        at = self._place(children, tokens)
        best, longest = None, (0, -1)
        for child in children[max(0, at - 1) : at + 1]:
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

    def _place(self, siblings: Sequence[_Node], tokens: bytes) -> int:
        """Where `tokens` stand among siblings, or would stand; an only child stands in every place."""
        if len(siblings) < 2:
            return 0
        order = b"".join(map(self._ranks.get, memoryview(tokens).cast("i"), repeat(_UNSEEN)))
        return bisect_left(siblings, order, key=_order_of)

    # --- holding and forgetting ---------------------------------------------------------------------------------------

    def publish(self, branch: _Node, name: bytes, tokens: bytes, blocks: Sequence[int]) -> _Node | None:
        if not any(blocks):
            # It is kept when something comes behind it: a node of its own until then, as whatever else has the name
            # may go before that.
            return _Node(name, tokens, self._gone, branch)
        parent = branch if branch.is_kept else self._kept(branch)
        if parent is None:
            return None
        node = self._nodes.get(name)
        if node is not None:
            return self._filled(node, parent, tokens, blocks)
        node = _Node(name, tokens, tuple(blocks), parent)
        self._keep(node, parent)
        places = self._places
        for block in node.blocks:
            if block:
                places[block] = node
        if self.tells_stored and self.listener is not None:
            self.listener.stored(name, parent.name, tokens)
        return node

    def publish_tail(self, branch: _Node, tokens: bytes, blocks: Sequence[int]) -> None:
        parent = self._kept(branch) if tokens and all(blocks) else None
        if parent is None:
            return
        _, run = self._nearest(parent, tokens)
        if 4 * run < len(tokens):
            node = _Node(b"", tokens, tuple(blocks), parent)
            for block in blocks:
                self._places[block] = node
            self._adopt(parent, node)

    def forget(self, block: int) -> None:
        node = self._places.pop(block, None)
        if node is None:
            return
        gone = self._gone
        if not self._is_plain:
            node.blocks = tuple([0 if held == block else held for held in node.blocks])
            if node.blocks != gone:
                return
        node.blocks = gone
        if node.name and self.listener is not None:
            self.listener.removed(node.name)
        nodes = self._nodes
        while not node.children and node.blocks == gone:  # take out what holds nothing and leads nowhere
            parent = node.parent
            assert parent is not None  # a root's blocks are ()
            siblings = parent.children
            if isinstance(siblings, list) and len(siblings) > 1:
                at = bisect_left(siblings, node.order, key=_order_of)
                while siblings[at] is not node:
                    at += 1
                del siblings[at]
            else:
                parent.children = ()
            if node.name:
                del nodes[node.name]
            node.parent, node.is_kept = None, False
            node = parent
        if not node.blocks and not node.children:
            del self._roots[node.tokens]
            node.is_kept = False

    def clear(self) -> None:
        for node in self._nodes.values():
            node.parent, node.children, node.is_kept = None, (), False
        for root in self._roots.values():
            root.children, root.is_kept = (), False
        self._roots.clear()
        self._nodes.clear()
        self._places.clear()
        if self.listener is not None:
            self.listener.cleared()

    def _filled(self, node: _Node, parent: _Node, tokens: bytes, blocks: Sequence[int]) -> _Node | None:
        """A node of the name that is published: it gets what it does not hold; None if it is another's."""
        if node.parent is not parent or node.tokens != tokens:
            return None
        held = node.blocks
        node.blocks = tuple([old or new for old, new in zip(held, blocks, strict=True)])
        for old, new in zip(held, blocks, strict=True):
            if new and not old:
                self._places[new] = node
        if held == self._gone != node.blocks and self.tells_stored and self.listener is not None:
            self.listener.stored(node.name, parent.name, tokens)
        return node

    def _kept(self, branch: _Node) -> _Node | None:
        """The node or root that stands for `branch` in the dictionaries, put there if it was not; None if none can."""
        if branch.is_kept:
            return branch
        if branch.parent is None:
            if branch.blocks:
                return None
            root = self._roots.setdefault(branch.tokens, branch)
            root.is_kept = True
            return root
        way = [branch]
        while way[-1].parent is not None and not way[-1].is_kept:
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
        node.is_kept = True
        if parent.children:
            self._adopt(parent, node)
        else:
            parent.children = (node,)

    def _adopt(self, parent: _Node, node: _Node) -> None:
        siblings = parent.children
        if not siblings:
            parent.children = (node,)
            return
        if not isinstance(siblings, list):
            siblings = parent.children = [*siblings]
            siblings[0].order = self._ranks.order(siblings[0].tokens)
        node.order = self._ranks.order(node.tokens)
        insort(siblings, node, key=_order_of)


_NOTHING: tuple[_Node | None, int] = (None, 0)


class _Ranks(dict[int, bytes]):
    """Tokens by their first appearance among siblings, as bytes that compare like the number."""

    def __missing__(self, token: int) -> bytes:
        rank = self[token] = len(self).to_bytes(4, "big")
        return rank

    def order(self, tokens: bytes) -> bytes:
        return b"".join(map(self.__getitem__, memoryview(tokens).cast("i")))


def _common_run(a: bytes, b: bytes) -> int:
    """Tokens that two runs of int32 begin with alike."""
    if a[:4] != b[:4]:
        return 0  # most siblings part at their first token
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (8 * size - differing.bit_length()) // 32


def _token(tokens: bytes, index: int) -> int:
    return int.from_bytes(tokens[4 * index : 4 * index + 4], "little", signed=True)
