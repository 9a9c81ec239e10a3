"""Grammars by the library xgrammar, an extra: `pip install 'asyncpage[xgrammar]'`.

It is asked for with `--grammar-backend xgrammar`. The library passes over what it does not know of a schema, so each
grammar is first compiled by the built-in compilers, which refuse what they cannot enforce, and a schema may use only
keywords that the library is known to enforce. It comes with torch, so only the executor loads it: there it compiles
the grammar once more, which nothing bounds but what the built-in compilers took. The library tells what its compiled
grammars take in memory, about, and not what the answers on their way through them do.

INVARIANT: the end of an answer is the engine's business: the library knows a token beyond the vocabulary for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from asyncpage.errors import ProtocolError, RequestError
from asyncpage.grammar.backend import API, Bits, GrammarLimit
from asyncpage.grammar.source import GrammarSource

# What random answers have kept to (tests/grammar/test_backends.py). The lengths of strings are not among it: where one
# is bounded, version 0.2.9 lets line ends stand in the string, which JSON does not.
ENFORCED = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "definitions", "minItems", "maxItems",
}  # fmt: skip
WITHOUT_EFFECT = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"}
_MOST_SPACE = 16  # characters between two words of JSON: without a bound, a model may go on with them for ever
_NAMED = ("properties", "$defs", "definitions")  # whose keys are names, not keywords


class XgrammarBackend:
    name = "xgrammar"
    api = API

    def missing(self) -> str:
        return "" if find_spec("xgrammar") else "asyncpage[xgrammar]"

    def compile(self, source: GrammarSource) -> bytes:
        from asyncpage.grammar.compile import compile_source  # which the executor does not need

        compile_source(source)
        if source.kind == "json_schema":
            for path in _not_enforced(json.loads(source.text), ""):
                text = f"{path} is not enforced by xgrammar; leave it out, or serve without --grammar-backend"
                raise RequestError(text, param=path, code="unsupported")
        return json.dumps({"kind": source.kind, "text": source.text}).encode()

    def reader(self, token_bytes: Sequence[bytes], vocab_size: int) -> XgrammarReader:
        return XgrammarReader(token_bytes, vocab_size)


class XgrammarReader:
    def __init__(self, token_bytes: Sequence[bytes], vocab_size: int) -> None:
        import xgrammar

        tokens = [*token_bytes, *[b""] * (vocab_size - len(token_bytes)), b"<end of answer>"]
        self._end = vocab_size
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[self._end]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=64 << 20)

    def open(self, compiled: bytes) -> XgrammarGrammar:
        try:
            return XgrammarGrammar(self._compiled(GrammarSource(**json.loads(compiled))), self._end)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ProtocolError(f"xgrammar cannot read the grammar: {type(error).__name__}") from error

    def _compiled(self, source: GrammarSource) -> Any:
        import xgrammar

        match source.kind:
            case "json_schema":
                return self._compiler.compile_json_schema(
                    source.text, strict_mode=False, max_whitespace_cnt=_MOST_SPACE
                )
            case "json_object":
                return self._compiler.compile_json_schema(
                    '{"type": "object"}', strict_mode=False, max_whitespace_cnt=_MOST_SPACE
                )
            case "regex":
                return self._compiler.compile_regex(source.text)
            case "choice":
                options = " | ".join(json.dumps(text) for text in json.loads(source.text))
                return self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(f"root ::= {options}"))
            case _:
                return self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(source.text))


class XgrammarGrammar:
    def __init__(self, compiled: Any, end: int) -> None:
        self._compiled = compiled
        self._end = end
        self.size_bytes = int(compiled.memory_size_bytes)

    def begin(self) -> XgrammarFollower:
        import xgrammar

        return XgrammarFollower(xgrammar.GrammarMatcher(self._compiled), self._end)


class XgrammarFollower:
    def __init__(self, matcher: Any, end: int) -> None:
        import xgrammar

        self._matcher = matcher
        self._end = end
        self._words = xgrammar.allocate_token_bitmask(1, end + 1)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def mask(self) -> Bits:
        bits = self._filled()[: (self._end + 7) // 8]  # where vocabularies fill their bytes, the end has one of its own
        bits[-1] &= 0xFF >> (-self._end & 7)
        return bits

    def may_end(self) -> bool:
        return bool(self._filled()[self._end >> 3] >> (self._end & 7) & 1)

    def _filled(self) -> Bits:
        """A copy of the bits of all tokens and the end."""
        try:
            self._matcher.fill_next_token_bitmask(self._words)
        except RuntimeError as error:
            raise GrammarLimit("xgrammar gave up on the grammar") from error
        words: Any = self._words.numpy()
        return np.frombuffer(words.astype("<i4").tobytes(), dtype=np.uint8)[: (self._end + 8) // 8].copy()


def _not_enforced(schema: Any, path: str) -> Iterator[str]:
    """Dotted paths of keywords that the library may pass over."""
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from _not_enforced(item, f"{path}.{index}")
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        here = f"{path}.{name}" if path else name
        if name in _NAMED and isinstance(value, dict):
            for key, inner in value.items():
                yield from _not_enforced(inner, f"{here}.{key}")
        elif name not in ENFORCED and name not in WITHOUT_EFFECT:
            yield here
        elif name in ("items", "additionalProperties", "anyOf"):
            yield from _not_enforced(value, here)
