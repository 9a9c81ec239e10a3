"""Which runs of tokens the cache holds, token by token: what a prefix index could reuse at best.

The index meter keeps one beside the index that it measures, and is told the same.

INVARIANT: it says of a prompt the longest beginning that lies in held blocks one behind the other, the last of them
taken up to any token.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

TOKEN = 4  # bytes


class Held:
    """A block's tokens behind those of its parent. `left`: block ids of it that are still held."""

    __slots__ = ("children", "left", "name", "order", "parent", "tokens")

    def __init__(self, parent: Held | None, tokens: bytes, name: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.name = name
        self.left = 0
        self.children: dict[bytes, Held] = {}
        self.order: list[bytes] = []  # the children's tokens, sorted


class HeldTokens:
    """Blocks of `block_size` tokens, held in all `groups` or in none that counts."""

    def __init__(self, block_size: int, groups: int) -> None:
        self._width = TOKEN * block_size
        self._groups = groups
        self._roots: dict[bytes, Held] = {}
        self._of_block: dict[int, Held] = {}
        self.tokens = 0  # held now

    def root(self, key: bytes, name: bytes) -> Held:
        """Where the prompts of a root begin."""
        found = self._roots.get(key)
        if found is None:
            found = self._roots[key] = Held(None, b"", name)
        return found

    def reusable(self, node: Held, tokens: bytes) -> tuple[list[Held], int]:
        """The held full blocks that `tokens` begin with behind `node`, and the tokens of one more block behind them."""
        path: list[Held] = []
        while True:
            start = self._width * len(path)
            child = node.children.get(tokens[start : start + self._width])
            if child is None or child.left < self._groups or len(child.tokens) < self._width:
                break
            node = child
            path.append(child)
        rest = tokens[start : start + self._width]
        at = bisect_left(node.order, rest)
        return path, max((_common(rest, near) for near in node.order[max(0, at - 1) : at + 1]), default=0)

    def hold(self, parent: Held, tokens: bytes, name: bytes, blocks: Sequence[int]) -> Held:
        """These blocks hold `tokens` behind `parent`."""
        node = parent.children.get(tokens)
        if node is None:
            node = parent.children[tokens] = Held(parent, tokens, name)
            insort(parent.order, tokens)
        for block in blocks:
            node.left += 1
            self.tokens += len(tokens) // TOKEN
            self._of_block[block] = node
        return node

    def forget(self, block: int) -> None:
        """The block holds something else from now on."""
        node = self._of_block.pop(block, None)
        if node is None:
            return
        node.left -= 1
        self.tokens -= len(node.tokens) // TOKEN
        while not node.left and not node.children and node.parent is not None:
            del node.parent.children[node.tokens]
            del node.parent.order[bisect_left(node.parent.order, node.tokens)]
            node = node.parent

    def clear(self) -> None:
        """Nothing is held."""
        self._roots.clear()
        self._of_block.clear()
        self.tokens = 0


def _common(a: bytes, b: bytes) -> int:
    """Tokens that two runs begin with alike."""
    size = min(len(a), len(b))
    for at in range(0, size, TOKEN):
        if a[at : at + TOKEN] != b[at : at + TOKEN]:
            return at // TOKEN
    return size // TOKEN
