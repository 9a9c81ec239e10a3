"""Builds a network: states, edges and rules are added between states, then it is trimmed, tightened and numbered.

The compilers write into it. What is written "from `source` to `target`" adds ways out of `source` and into `target`
only, so that a sequence needs no jumps and alternatives may share both ends.

INVARIANT: the network that it gives has no state from which its rule cannot be finished.
"""

from __future__ import annotations

from asyncpage.grammar.network import MAX_STATES, Network
from asyncpage.grammar.refusal import invalid, too_large
from asyncpage.grammar.sketch import Sketch
from asyncpage.grammar.tightening import tighten
from asyncpage.grammar.trimming import trim


class NetworkBuilder:
    """Rule 0, the root, is there from the start."""

    def __init__(self) -> None:
        self._sketch = Sketch()
        self.rule()

    def state(self) -> int:
        """A new state. Errors: 400 past `MAX_STATES`."""
        if len(self._sketch.edges) >= MAX_STATES:
            raise too_large(
                f"the grammar needs more than {MAX_STATES} states: lower its counts, or leave out alternatives"
            )
        return self._sketch.add_state()

    def rule(self) -> int:
        """A new rule, with a start and a final state."""
        self._sketch.starts.append(self.state())
        self._sketch.finals.append(self.state())
        return len(self._sketch.starts) - 1

    def start(self, rule: int = 0) -> int:
        return self._sketch.starts[rule]

    def final(self, rule: int = 0) -> int:
        """A rule's final state; nothing may lead out of it."""
        return self._sketch.finals[rule]

    def byte(self, source: int, low: int, high: int, target: int) -> None:
        """One byte within low..high."""
        self._sketch.edges[source].append((low, high, target))

    def jump(self, source: int, target: int) -> None:
        """No byte."""
        if source != target:
            self._sketch.jumps[source].append(target)

    def call(self, source: int, rule: int, target: int) -> None:
        """Whatever the rule matches."""
        self._sketch.calls[source].append((rule, target))

    def literal(self, source: int, data: bytes, target: int) -> None:
        """Exactly these bytes."""
        if not data:
            self.jump(source, target)
            return
        for byte in data[:-1]:
            after = self.state()
            self.byte(source, byte, byte, after)
            source = after
        self.byte(source, data[-1], data[-1], target)

    def finish(self) -> Network:
        """Errors: 400 when nothing can match the root."""
        if not trim(self._sketch):
            raise invalid("no text can match this: its conditions contradict one another, or it never comes to an end")
        tighten(self._sketch)
        return self._sketch.to_network()
