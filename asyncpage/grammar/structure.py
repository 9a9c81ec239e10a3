"""Structures: literal texts, schemas and free text, put together; what calls of tools are made of.

`compile` calls it. The parts are in `source.GrammarSource`'s docstring.

INVARIANT: exactly the texts match that the parts allow in their places.
"""

from __future__ import annotations

from typing import Any

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.control import control_bytes
from asyncpage.grammar.counting import repeat
from asyncpage.grammar.dfa import containing, none_of
from asyncpage.grammar.document import read_json
from asyncpage.grammar.json_schema import SchemaCompiler
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.network import Network
from asyncpage.grammar.nfa import ANYTHING
from asyncpage.grammar.refusal import invalid, too_large
from asyncpage.grammar.schema_site import Path
from asyncpage.grammar.spelling import utf8
from asyncpage.grammar.writing import Writer

MAX_PARTS = 10_000
MAX_REPEATS = 10_000
MAX_FREE = 1_000  # characters of all texts that free text must not have; a state each


def compile_structure(text: str) -> Network:
    """Errors: 400, `param` the path of the part at fault, and of the keyword within a schema."""
    builder = NetworkBuilder()
    _Writer(builder).write(read_json(text, "the structure"), builder.start(), builder.final(), ())
    return builder.finish()


class _Writer:
    def __init__(self, builder: NetworkBuilder) -> None:
        self._builder = builder
        self._json = JsonText(builder)
        self._texts = Writer(builder, utf8)
        self._parts = 0

    def write(self, part: Any, source: int, target: int, path: Path) -> None:
        """A part from `source` to `target`. It recurses; the document's depth is bounded."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise too_large(f"a structure may have at most {MAX_PARTS} parts", path)
        match part:
            case {"literal": str(text), **rest} if not rest:
                self._builder.literal(source, text.encode(), target)
            case {"control": str(text), **rest} if not rest:
                self._builder.literal(source, text.encode(), target)
                self._builder.literal(source, control_bytes(text), target)
            case {"schema": schema, **rest} if not rest:
                SchemaCompiler(self._builder, self._json, schema, (*path, "schema")).write(source, target)
            case {"sequence": list(parts), **rest} if not rest:
                for index, one in enumerate(parts):
                    after = self._builder.state()
                    self.write(one, source, after, (*path, "sequence", str(index)))
                    source = after
                self._builder.jump(source, target)
            case {"any_of": list(parts), **rest} if not rest:
                for index, one in enumerate(parts):
                    self.write(one, source, target, (*path, "any_of", str(index)))
            case {"repeat": repeated, **bounds} if bounds.keys() <= {"min", "max"}:
                self._repeat(repeated, bounds.get("min", 0), bounds.get("max"), source, target, path)
            case {"free": list(texts), **rest} if not rest and all(isinstance(one, str) and one for one in texts):
                if sum(map(len, texts)) > MAX_FREE:
                    raise too_large(f"the texts that free text must not have may have {MAX_FREE} characters", path)
                self._texts.write(none_of(containing(texts)) if texts else ANYTHING, source, target)
            case _:
                raise invalid(
                    "a part must be one of literal, control, schema, sequence, any_of, repeat (with min and max) and "
                    "free, with the value that belongs to it",
                    path,
                )

    def _repeat(self, part: Any, low: Any, high: Any, source: int, target: int, path: Path) -> None:
        for bound, name in ((low, "min"), (high, "max")):
            if not (bound is None and name == "max") and (type(bound) is not int or not 0 <= bound <= MAX_REPEATS):
                raise invalid(f"{name} must be a whole number from 0 to {MAX_REPEATS}", (*path, name))
        rule = self._builder.rule()
        self.write(part, self._builder.start(rule), self._builder.final(rule), (*path, "repeat"))
        repeat(self._builder, lambda start, end: self._builder.call(start, rule, end), low, high, source, target)
