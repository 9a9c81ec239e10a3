"""How a grammar names a control token: by bytes that no text has.

The vocabulary that an executor is told gives each control token these bytes; a structure asks for them.

INVARIANT: a grammar of texts never allows a control token, because 0xFF stands in no UTF-8.
"""

from __future__ import annotations

_EDGE = b"\xff"


def control_bytes(text: str | bytes) -> bytes:
    """What stands for the control token of this text."""
    return _EDGE + (text.encode() if isinstance(text, str) else text) + _EDGE
