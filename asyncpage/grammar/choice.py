"""Choices: the answer is one text of a list.

`compile` calls it.

INVARIANT: exactly the texts of the list match.
"""

from __future__ import annotations

from asyncpage.grammar.builder import NetworkBuilder
from asyncpage.grammar.document import read_json
from asyncpage.grammar.network import Network
from asyncpage.grammar.refusal import invalid, too_large
from asyncpage.grammar.writing import write_words

MAX_CHOICES = 10_000


def compile_choice(text: str) -> Network:
    """`text`: a JSON list of strings. Errors: 400, `param` the index of a choice that is none."""
    choices = read_json(text, "the choices")
    if not isinstance(choices, list) or not choices:
        raise invalid("choices must be a list of at least one string")
    if len(choices) > MAX_CHOICES:
        raise too_large(f"at most {MAX_CHOICES} choices are allowed, got {len(choices)}")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise invalid("a choice must be a string", (str(index),))
    builder = NetworkBuilder()
    write_words(builder, (choice.encode() for choice in choices), builder.start(), builder.final())
    return builder.finish()
