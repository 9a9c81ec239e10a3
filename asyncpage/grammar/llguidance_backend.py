"""Grammars by the library llguidance, an extra: `pip install 'asyncpage[llguidance]'`.

It is asked for with `--grammar-backend llguidance`. Whatever of a schema it does not enforce it refuses by itself, and
it bounds its own work. What it takes in memory it does not tell: that of a grammar is estimated from its text, the
states of each answer's lexer are bounded in number and not counted.

INVARIANT: the end of an answer is the engine's business: the library knows a token beyond the vocabulary for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

import numpy as np

from asyncpage.errors import ProtocolError, RequestError
from asyncpage.grammar.backend import API, Bits, GrammarLimit
from asyncpage.grammar.source import GrammarSource

_JSON: Any = {
    "whitespace_pattern": r"[ \n\r\t]{0,16}",  # without a bound, a model may go on with it for ever
    "lenient": False,  # a schema may ask for these itself
    "coerce_one_of": False,
}
# A mask for some 0.1 s at most, and some 60 MB of lexer an answer. An error is told without the grammar.
LIMITS: Any = {"step_max_items": 10_000, "max_lexer_states": 30_000, "verbose_errors": False}
_TOO_MUCH = "llguidance finds too many ways to go on at one place; make the grammar smaller"
_NOT_ALLOWED = "satisfy the grammar"  # in its word on a token; of a bound it has others
_TEXT_BYTES = 64  # what a grammar takes for each byte of its text, 40 to 50 were measured
_COPY_BYTES = 1  # what an answer's copy of it takes, the same


class LlguidanceBackend:
    name = "llguidance"
    api = API

    def missing(self) -> str:
        return "" if find_spec("llguidance") else "asyncpage[llguidance]"

    def compile(self, source: GrammarSource) -> bytes:
        from llguidance import LLMatcher

        try:
            match source.kind:
                case "json_schema":
                    grammar = LLMatcher.grammar_from_json_schema(source.text, overrides=_JSON)
                case "json_object":
                    grammar = LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_JSON)
                case "regex":
                    grammar = LLMatcher.grammar_from_regex(source.text)
                case "choice":
                    options = " | ".join(json.dumps(text) for text in json.loads(source.text))
                    grammar = LLMatcher.grammar_from_lark(f"start: {options}")
                case "grammar":
                    grammar = LLMatcher.grammar_from_lark(_lark_of(source.text))
                case _:
                    text = f"grammars of the kind {source.kind!r} are not taken by llguidance"
                    raise RequestError(text, param="", code="unsupported")
        except ValueError as error:
            raise _refused(str(error)) from None
        if wrong := LLMatcher.validate_grammar(grammar):
            raise _refused(wrong)
        return str(grammar).encode()

    def reader(self, token_bytes: Sequence[bytes], vocab_size: int) -> LlguidanceReader:
        return LlguidanceReader(token_bytes, vocab_size)


class LlguidanceReader:
    def __init__(self, token_bytes: Sequence[bytes], vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = _Tokens([*token_bytes, *[b""] * (vocab_size - len(token_bytes)), b"<end of answer>"])
        self._vocab_size = vocab_size
        self._tokenizer = LLTokenizer(TokenizerWrapper(tokens), n_vocab=vocab_size + 1)

    def open(self, compiled: bytes) -> LlguidanceGrammar:
        return LlguidanceGrammar(self._tokenizer, compiled.decode(), self._vocab_size)


class LlguidanceGrammar:
    def __init__(self, tokenizer: Any, grammar: str, vocab_size: int) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self._matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        self._vocab_size = vocab_size
        self._length = len(grammar)
        self._followers: WeakSet[LlguidanceFollower] = WeakSet()
        if self._matcher.is_error():
            raise ProtocolError("bytes that llguidance cannot read as a grammar")

    @property
    def size_bytes(self) -> int:
        return (_TEXT_BYTES + _COPY_BYTES * len(self._followers)) * self._length

    def begin(self) -> LlguidanceFollower:
        follower = LlguidanceFollower(self._matcher.deep_copy(), self._vocab_size)
        self._followers.add(follower)
        return follower


class LlguidanceFollower:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bytes = (vocab_size + 7) // 8
        self._last = 0xFF >> (-vocab_size % 8)  # the bits of the last byte that are tokens

    def advance(self, token: int) -> bool:
        if self._matcher.is_stopped():  # nothing may follow, and asking would be an error
            return False
        if self._matcher.consume_token(token):
            return True
        if _NOT_ALLOWED not in self._matcher.get_error():
            raise GrammarLimit(_TOO_MUCH)
        return False

    def mask(self) -> Bits:
        if self._matcher.is_stopped():
            return np.zeros(self._bytes, dtype=np.uint8)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)[: self._bytes].copy()
        if self._matcher.is_error():
            raise GrammarLimit(_TOO_MUCH)
        bits[-1] &= self._last
        return bits

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class _Tokens:
    """A vocabulary as the library wants to see it; it cuts texts that a grammar forces, whichever way."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1
        self.special_token_ids = [self.eos_token_id]
        self._ids = {data: id for id, data in enumerate(tokens[:-1]) if data}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The longest token first; what no token begins is left out."""
        ids, at = [], 0
        while at < len(text):
            for size in range(min(self._longest, len(text) - at), 0, -1):
                id = self._ids.get(text[at : at + size])
                if id is not None:
                    ids.append(id)
                    at += size
                    break
            else:
                at += 1
        return ids


def _lark_of(gbnf: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(gbnf))
    except Exception as error:  # it raises nothing more special
        raise ValueError(str(error)) from None


def _refused(reason: str) -> RequestError:
    first = next(iter(reason.splitlines()), "it is malformed")
    code = "unsupported" if "nimplemented" in first or "not supported" in first else "invalid_grammar"
    return RequestError(f"llguidance refuses the grammar: {first}", param="", code=code)
