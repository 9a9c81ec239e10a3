"""The fields that ask for an answer of a certain form.

The body readers call `read_structured`.

INVARIANT: a form that this server cannot keep to is refused.
"""

from __future__ import annotations

from asyncpage.grammar.source import GrammarSource
from asyncpage.server.fields import Fields
from asyncpage.server.unsupported import unsupported


def read_structured(fields: Fields) -> tuple[GrammarSource, str] | None:
    """What the answer must follow and the field that asked for it. Errors: 400 naming the field."""
    wanted = fields.value("response_format")
    if wanted is not None and wanted != {"type": "text"}:
        raise unsupported("response_format", "structured output")
    for name in fields.names():
        if name != "response_format" and fields.value(name) is not None:
            raise unsupported(name, "structured output")
    return None
