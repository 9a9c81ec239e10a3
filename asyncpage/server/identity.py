"""Names for requests and answers: unguessable where they are ours, checked where they are the client's.

The envelope asks for request ids, the routes for answer ids.

INVARIANT: no name made here can be told from another, and none that a client chose identifies anything inside.
"""

from __future__ import annotations

import re
import secrets

_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def new_id(prefix: str) -> str:
    """A fresh name, such as `chatcmpl-` or `resp_` and 32 hexadecimal digits; a prefix without a joint gets a dash."""
    return f"{prefix}{'' if prefix.endswith('_') else '-'}{new_mark()}"


def new_mark() -> str:
    """The part of a name that no other has."""
    return secrets.token_hex(16)


def request_id(offered: str | None) -> str:
    """The client's own `x-request-id` where it is fit for a header and a log line, else a fresh one."""
    if offered is not None and _SANE.fullmatch(offered):
        return offered
    return new_id("req")
