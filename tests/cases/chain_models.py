"""The CHAIN models of the cases: as many scripts in one as its pieces allow, so that few servers are started.

INVARIANT: the scripts of one model share no piece that goes on in two ways.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.cases.chain import CERTAIN, EOS, Piece, Table, write_chain
from tests.cases.model_folder import Model

MARKERS = 400
MARKER_PIECES = 3

TOOL_TEMPLATE = (
    "{% if tools %}{{ '<tools>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '</tools>' }}{% endif %}"
    "{% for m in messages if m.role == 'user' %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
)

# After these two tokens are equally likely, and the lower id must win.
TIES: Table = {
    "@tie": {"\x01": 9.0, "\x02": 9.0},
    "\x01": {"\x03": 9.0, "\x04": 9.0},
    "\x02": {"\x05": 9.0},
    "\x03": {"\x01": 9.0, "\x02": 9.0},
}

# The penalties' closed form: 3.0 / 1.5 is 2.0, 3.0 - 1.0 too, and each row has a rival just above or below that.
PENALTIES: Table = {
    "@b": {"@a": 3.0, "q": 2.01},
    "@c": {"@a": 3.0, "q": 1.99},
    "@a": {"@a": 3.0, "r": 2.01},
    "q": {"q": 3.0, "r": 2.01},
    "r": {"@a": 3.0, "r": 2.5, "v": 2.01},
    "v": {"v": 3.0, "w": 1.0},
}

TWO_CALLS = "".join(
    f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': {'city': city}}, ensure_ascii=False)}\n</tool_call>"
    for city in ("Tokyo", "Zürich 京")
)


def marker(stream: int) -> list[Piece]:
    """Three pieces that are nobody else's."""
    return [f"<{stream}{letter}>" for letter in "abc"[:MARKER_PIECES]]


def write_many(folder: Path) -> Model:
    """Everything but what needs a model of its own."""
    scripts: dict[str, Sequence[Piece]] = {
        "@emoji": ["A", b"\xf0\x9f", b"\x98", b"\x80", b"\xc4", b"\x8f", "B", EOS],
    }
    for stream in range(MARKERS):
        scripts[f"@m{stream};"] = [*marker(stream), marker(stream)[0]]  # round and round
    return write_chain(folder, scripts, {**TIES, **PENALTIES})


def write_alpha(folder: Path) -> Model:
    scripts = {"@alpha": ["A", "BC", "DE", "F", "GHI", "JKL", "M", EOS], "@words": ["one", " two", " three", EOS]}
    return write_chain(folder, scripts)


def write_broken_characters(folder: Path) -> Model:
    scripts = {"@cut": ["A", b"\xf0\x9f", b"\x98\x80", EOS], "@badbyte": ["C", b"\xff", " ", "ok", EOS]}
    return write_chain(folder, scripts)


def write_spaces(folder: Path) -> Model:
    """After every token the space, then the newline, then all others alike."""
    return write_chain(folder, {}, otherwise={" ": CERTAIN, "\n": CERTAIN / 2})


def split_scripts(text: str, count: int, seed: int) -> tuple[dict[str, Sequence[Piece]], list[str]]:
    """Scripts that write `text` in two pieces, at every byte, and the names of them; or in three, at random ones.

    `count` 0 means two pieces. First pieces differ in length, so that no two scripts share one.
    """
    data = text.encode()
    rng = Random(seed)
    after: dict[bytes, bytes] = {}  # a piece goes on in one way only, whatever the script
    scripts: dict[str, Sequence[Piece]] = {}
    for first in range(1, len(data)) if count == 0 else rng.sample(range(1, len(data) - 1), count):
        while True:
            cuts = [0, first, *([rng.randint(first + 1, len(data) - 1)] if count else []), len(data)]
            pieces = [data[start:end] for start, end in pairwise(cuts)]
            steps = dict(pairwise([*pieces, b"the end"]))
            if all(after.get(piece, following) == following for piece, following in steps.items()):
                break
        after |= steps
        scripts[f"@s{first};"] = [*pieces, EOS]
    return scripts, list(scripts)


def write_splits(folder: Path, text: str, count: int = 0, seed: int = 1) -> Model:
    scripts, _ = split_scripts(text, count, seed)
    return write_chain(folder, scripts, template=TOOL_TEMPLATE, flags=("--tool-call-parser", "hermes"))
