"""What an answer must look like, as it was asked for: the input of a compilation.

The server's body readers make it; the compiler reads it in its own process.

INVARIANT: equal sources mean the same language, so a compiled one can be kept under its source.
"""

from __future__ import annotations

from typing import Literal

from asyncpage.records import record

MOST_CHARACTERS = 1 << 20
"""Of one schema, pattern, grammar, list of choices or structure; people's have some thousands."""

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structure"]


@record(frozen=True, slots=True)
class GrammarSource:
    """`text` by `kind`: the JSON text of a schema or of a list of choices, a regex's pattern, a grammar's GBNF.

    For `json_object` it is empty. A `structure` is a JSON tree of parts: `{"literal": text}`, `{"control": text}`, the
    control token of this text or the text itself, `{"schema": schema}`, `{"sequence": [part, ...]}`,
    `{"any_of": [part, ...]}`, `{"repeat": part, "min": a, "max": b or null}` and `{"free": [text, ...]}`, any text
    that contains none of these.
    """

    kind: GrammarKind
    text: str = ""
