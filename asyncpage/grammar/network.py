"""A recursive transition network over bytes: what every kind of grammar is compiled to.

The compiler builds it in its own process; it travels as bytes to the executor, which walks it.

INVARIANT: a network that was made or read names only states and rules that it has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncpage.errors import ProtocolError

Int32 = NDArray[np.int32]  # not from the messages: the compile worker starts a third faster without them

MAX_STATES = 200_000
MAX_BYTES = 8 * 1024 * 1024

MAGIC = b"apgn"
_VERSION = 1
_HEADER = struct.Struct("<4s6I")  # magic, version, states, rules, edges, jumps, calls


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """States are numbered from 0. Rule 0 is the root: a text matches when it leads from its start to its final state.

    `starts`, `finals`: [R] of each rule. `edges`: [E, 4] source, low, high, target: one byte within low..high.
    `jumps`: [J, 2] source, target: no byte. `calls`: [C, 3] source, rule, target: whatever the rule matches.
    """

    states: int
    starts: Int32
    finals: Int32
    edges: Int32
    jumps: Int32
    calls: Int32

    def __post_init__(self) -> None:
        """Errors: `ProtocolError` for a network that does not fit itself."""
        rules = len(self.starts)
        if not 0 < self.states <= MAX_STATES or not 0 < rules == len(self.finals):
            raise ProtocolError(f"a grammar network has {self.states} states and {rules} rules")
        for name, column, most in (
            ("starts", self.starts, self.states),
            ("finals", self.finals, self.states),
            ("edges", self.edges[:, (0, 3)], self.states),
            ("edges", self.edges[:, 1:3], 256),
            ("jumps", self.jumps, self.states),
            ("calls", self.calls[:, (0, 2)], self.states),
            ("calls", self.calls[:, 1], rules),
        ):
            if column.size and not 0 <= int(column.min()) <= int(column.max()) < most:
                raise ProtocolError(f"a grammar network's {name} name what it does not have")

    def to_bytes(self) -> bytes:
        """A header and int32 columns, little-endian: equal networks give equal bytes on every machine."""
        columns = (self.starts, self.finals, self.edges, self.jumps, self.calls)
        counts = (self.states, len(self.starts), len(self.edges), len(self.jumps), len(self.calls))
        return _HEADER.pack(MAGIC, _VERSION, *counts) + b"".join(
            np.ascontiguousarray(column, dtype="<i4").tobytes() for column in columns
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> Network:
        """Errors: `ProtocolError` for bytes that are none."""
        if not _HEADER.size <= len(raw) <= MAX_BYTES:
            raise ProtocolError(f"a grammar network of {len(raw)} bytes")
        magic, version, states, rules, edges, jumps, calls = _HEADER.unpack_from(raw)
        if (magic, version) != (MAGIC, _VERSION):
            raise ProtocolError("bytes that are no grammar network of this version")
        shapes = ((rules,), (rules,), (edges, 4), (jumps, 2), (calls, 3))
        sizes = [int(np.prod(shape)) for shape in shapes]
        if len(raw) != _HEADER.size + 4 * sum(sizes):
            raise ProtocolError("a grammar network whose columns do not fill its bytes")
        column = np.frombuffer(raw, dtype="<i4", offset=_HEADER.size)
        parts, at = [], 0
        for size, shape in zip(sizes, shapes, strict=True):
            parts.append(column[at : at + size].reshape(shape))
            at += size
        return cls(states, *parts)
