"""Compiles what an answer must look like to a network of bytes.

The compile worker calls it, in a process of its own.

INVARIANT: equal sources give equal networks in every process, and whatever the source, it ends in a network or a 400
within bounded time.
"""

from __future__ import annotations

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.choice import compile_choice
from asyncpage.grammar.document import read_json
from asyncpage.grammar.gbnf import compile_gbnf
from asyncpage.grammar.json_schema import SchemaCompiler
from asyncpage.grammar.json_text import JsonText
from asyncpage.grammar.network import Network
from asyncpage.grammar.regex import full_match
from asyncpage.grammar.source import GrammarSource
from asyncpage.grammar.spelling import utf8
from asyncpage.grammar.structure import compile_structure
from asyncpage.grammar.writing import Writer


def compile_source(source: GrammarSource) -> Network:
    """The network of a source.

    Errors: `RequestError` (400) with the dotted path inside the grammar as `param`: "unsupported" for a keyword that
    cannot be enforced, "grammar_too_large" past a limit, "invalid_grammar" for everything else.
    """
    match source.kind:
        case "json_object":
            return _json_object()
        case "json_schema":
            return _json_schema(source.text)
        case "regex":
            return _regex(source.text)
        case "choice":
            return compile_choice(source.text)
        case "grammar":
            return compile_gbnf(source.text)
        case "structure":
            return compile_structure(source.text)


def _json_object() -> Network:
    builder = NetworkBuilder()
    JsonText(builder).any_object(builder.start(), builder.final())
    return builder.finish()


def _json_schema(text: str) -> Network:
    builder = NetworkBuilder()
    schema = read_json(text, "the schema")
    SchemaCompiler(builder, JsonText(builder), schema).write(builder.start(), builder.final())
    return builder.finish()


def _regex(pattern: str) -> Network:
    builder = NetworkBuilder()
    Writer(builder, utf8).write(full_match(pattern), builder.start(), builder.final())
    return builder.finish()
