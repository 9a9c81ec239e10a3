"""What a cache holds, against a search through every held block."""

from __future__ import annotations

from array import array
from random import Random

from asyncpage.simulation.held_tokens import Held, HeldTokens

SIZE = 4


def pack(tokens: tuple[int, ...]) -> bytes:
    return array("i", tokens).tobytes()


def longest(held: dict[int, tuple[int, ...]], prompt: tuple[int, ...]) -> int:
    """`held`: for each block all tokens up to its end. The longest beginning whose every block is held."""
    whole = 0
    contents = set(held.values())
    while prompt[: whole + SIZE] in contents and len(prompt) >= whole + SIZE:
        whole += SIZE
    best = whole
    for content in contents:
        if len(content) > whole >= len(content) - SIZE and content[:whole] == prompt[:whole]:
            run = whole
            while run < min(len(content), len(prompt)) and content[run] == prompt[run]:
                run += 1
            best = max(best, run)
    return best


def test_the_reusable_beginning_is_what_a_search_finds() -> None:
    chance = Random(2)
    tracked = HeldTokens(SIZE, groups=1)
    root = tracked.root(b"root", b"")
    nodes: dict[tuple[int, ...], Held] = {(): root}
    held: dict[int, tuple[int, ...]] = {}
    compared = 0
    for block in range(1, 3000):
        parent = chance.choice([key for key in nodes if len(key) % SIZE == 0][-12:])
        width = SIZE if chance.random() < 0.8 else chance.randrange(1, SIZE)
        tokens = tuple(chance.randrange(2) for _ in range(width))
        if parent == () or parent in held.values():
            content = parent + tokens
            if content not in held.values():
                nodes[content] = tracked.hold(nodes[parent], pack(tokens), b"", [block])
                held[block] = content
        if len(held) > 12:
            # As the pool does: the end of a branch goes before what it hangs on.
            ends = [
                key
                for key, content in held.items()
                if not any(content == o[: len(content)] != o for o in held.values())
            ]
            victim = chance.choice(ends)
            nodes.pop(held.pop(victim))
            tracked.forget(victim)
        begin = chance.choice([(), *held.values()])
        prompt = begin + tuple(chance.randrange(2) for _ in range(chance.randrange(8)))
        path, tail = tracked.reusable(root, pack(prompt))
        assert len(path) * SIZE + tail == longest(held, prompt)
        assert tracked.tokens == sum((len(content) - 1) % SIZE + 1 for content in held.values())
        compared += len(path) > 0
    assert compared > 500
    tracked.clear()
    assert tracked.reusable(tracked.root(b"root", b""), pack((0, 1, 0, 1)))[1] == 0
