"""What an answer must look like, where another API than chat completions asks for it: read in that API's form.

The body readers of other APIs call `read_answer_format`.

INVARIANT: there is one reader of formats, so one that is refused there is refused here, by the client's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpage.grammar.source import GrammarSource
from asyncpage.server.fields import Fields
from asyncpage.server.generate.renaming import rename, renamed
from asyncpage.server.generate.structured_fields import read_structured


def read_answer_format(fields: Fields, asked: Mapping[str, Any], path: str) -> tuple[GrammarSource, str] | None:
    """What the answer must follow, and the field that says so; `asked` is a format with a type, at `path`.

    Errors: `RequestError` 400 naming the field.
    """
    kind = Fields(dict(asked), path).required("type")
    # A schema stands here beside its type, and in chat completions one level below it, with a name.
    inner = {"name": "answer", **{name: value for name, value in asked.items() if name != "type"}}
    wanted = {"type": kind, "json_schema": inner} if kind == "json_schema" else asked
    extensions = {name: fields.value(name) for name in fields.names() if _is_extension(name)}
    names = ((r"response_format\.json_schema", path), (r"response_format", path))
    with renamed(names):
        found = read_structured(Fields({"response_format": wanted, **extensions}))
    return None if found is None else (found[0], rename(found[1], names))


def _is_extension(name: str) -> bool:
    return name in ("structured_outputs", "json_schema", "grammar") or name.startswith("guided_")
