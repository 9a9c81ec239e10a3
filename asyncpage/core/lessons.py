"""What an executor process has been told of vocabulary, grammars and adapters, and what it must be told before a step.

The executor's near end owns one and sends what it gives, in front of the step. The near end alone decides what the
far end keeps: it names what to forget, so the two cannot come to differ.

INVARIANT: a row reaches the far end only after the grammar that it names, which was not forgotten since, and after the
adapter that its slot holds; what the far end keeps is bounded, but for the grammars that one step adds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import replace

from asyncpage.messages import Adapter, Constraint, LearnAdapter, LearnGrammar, LearnVocabulary, Lesson, Step

MOST_GRAMMARS = 256
MOST_BYTES = 32 << 20  # of compiled grammars; one that is longer is kept alone


class Lessons:
    """`vocabulary`: what the tokens stand for, None where no row will ever follow a grammar."""

    def __init__(self) -> None:
        self.vocabulary: LearnVocabulary | None = None
        self._knows_vocabulary = False
        self._grammars: OrderedDict[bytes, int] = OrderedDict()  # bytes by digest, the one named last at the end
        self._bytes = 0
        self._slots: dict[int, Adapter] = {}  # what each holds

    def restart(self) -> None:
        """Another process takes over, which knows nothing."""
        self._slots.clear()
        self._knows_vocabulary = False
        self._grammars.clear()
        self._bytes = 0

    def learn(self, vocabulary: LearnVocabulary, *, is_there: bool) -> tuple[LearnVocabulary, ...]:
        """Rows will follow grammars. Returns what to send now, to a far end that is there and may prepare for them."""
        self.vocabulary = vocabulary
        self._knows_vocabulary = is_there
        return (vocabulary,) if is_there else ()

    def before(self, step: Step) -> tuple[tuple[Lesson, ...], Step]:
        """What to send in front of `step`, and the step with its grammars by name and its adapters by slot."""
        if not any(new.constraint or new.lora for new in step.added):
            return (), step
        lessons: list[Lesson] = []
        for new in step.added:
            if new.lora is not None and self._slots.get(new.adapter_slot) != new.lora:
                self._slots[new.adapter_slot] = new.lora
                lessons.append(LearnAdapter(new.adapter_slot, new.lora))
        lessons += self._grammars_of(step)
        added = tuple(
            replace(new, constraint=None if new.constraint is None else new.constraint.name, lora=None)
            for new in step.added
        )
        return tuple(lessons), replace(step, added=added)

    def _grammars_of(self, step: Step) -> list[Lesson]:
        lessons: list[Lesson] = []
        needed = {new.constraint.digest: new.constraint for new in step.added if new.constraint is not None}
        if not needed:
            return lessons
        if self.vocabulary is not None and not self._knows_vocabulary:
            self._knows_vocabulary = True
            lessons.append(self.vocabulary)
        for digest in needed.keys() & self._grammars.keys():
            self._grammars.move_to_end(digest)
        new_ones = [constraint for digest, constraint in needed.items() if digest not in self._grammars]
        return lessons + [self._teach(constraint, needed) for constraint in new_ones]

    def _teach(self, constraint: Constraint, needed: Container[bytes]) -> LearnGrammar:
        """Room is made of what the step at hand does not need: of the oldest, which stand first."""
        size = len(constraint.compiled)
        forget = []
        while len(self._grammars) >= MOST_GRAMMARS or self._bytes + size > MOST_BYTES:
            digest = next(iter(self._grammars), None)
            if digest is None or digest in needed:
                break
            self._bytes -= self._grammars.pop(digest)
            forget.append(digest)
        self._grammars[constraint.digest] = size
        self._bytes += size
        return LearnGrammar(constraint, tuple(forget))
