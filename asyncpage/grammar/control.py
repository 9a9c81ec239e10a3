"""How a grammar names a control token: by bytes that no text has.

The vocabulary that an executor is told gives each control token these bytes; a structure asks for them.

INVARIANT: a grammar of texts never allows a control token, because 0xFF stands in no UTF-8; where one is asked for,
no tokens of text can spell its name.
"""

from __future__ import annotations

_EDGE = b"\xff"


def control_bytes(text: str | bytes) -> bytes:
    """What stands for the control token of this text."""
    return _EDGE + (text.encode() if isinstance(text, str) else text) + _EDGE


def told_bytes(data: bytes, *, is_control: bool) -> bytes:
    """What an executor is told that a token stands for; nothing, where it is a piece of text that no text has.

    Vocabularies have a token for each byte: with that of 0xFF, a control token's name could be spelled.
    """
    if is_control:
        return control_bytes(data)
    return b"" if _EDGE in data else data
