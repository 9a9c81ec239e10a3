r"""String formats as regular expressions: dates, times, addresses and their like.

`schema_reader` knows the names, `schema_strings` asks for the automata. Written for those who will parse what comes
out: a date is a day of the calendar, a time has its offset (RFC 3339), an e-mail address is one that needs no quoting.

INVARIANT: every text of a format is valid for it; some rare spellings of a format are left out.
"""

from __future__ import annotations

from functools import cache

from asyncpage.grammar.nfa import Nfa
from asyncpage.grammar.regex import full_match

_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][48]|[2468]0|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _SIXTY = "([01][0-9]|2[0-3])", "[0-5][0-9]"
_TIME = rf"{_HOUR}:{_SIXTY}:{_SIXTY}(\.[0-9]{{1,6}})?(Z|[+-]{_HOUR}:{_SIXTY})"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "(" + "|".join(
    [f"{_GROUP}(:{_GROUP}){{7}}"]
    + [
        (f"{_GROUP}(:{_GROUP}){{{left - 1}}}" if left else "")
        + "::"
        + (f"({_GROUP}(:{_GROUP}){{0,{6 - left}}})?" if left < 7 else "")
        for left in range(8)
    ]
) + ")"  # fmt: skip
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOSTNAME = rf"({_LABEL}\.){{0,3}}[A-Za-z]([A-Za-z0-9-]{{0,30}}[A-Za-z0-9])?"
_ATOM = "[A-Za-z0-9_+-]{1,30}"
_EMAIL = rf"{_ATOM}(\.{_ATOM})?@({_LABEL}\.){{1,3}}[A-Za-z]{{2,18}}"
_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-%s{_HEX}{{3}}-{_HEX}{{12}}"
_URI_TAIL = r"([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
_URI = rf"[a-z][a-z0-9+.-]{{1,15}}://{_LABEL}(\.{_LABEL}){{0,3}}(:[1-9][0-9]{{0,3}})?([/?]{_URI_TAIL})?"
_COUNT = "[0-9]{1,4}"
_DURATION_TIME = f"T({_COUNT}H({_COUNT}M({_COUNT}S)?)?|{_COUNT}M({_COUNT}S)?|{_COUNT}S)"
_DURATION_DATE = f"({_COUNT}Y({_COUNT}M({_COUNT}D)?)?|{_COUNT}M({_COUNT}D)?|{_COUNT}D)"
_DURATION = f"P({_COUNT}W|{_DURATION_DATE}({_DURATION_TIME})?|{_DURATION_TIME})"

_PATTERNS = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "time": _TIME,
    "duration": _DURATION,
    "uuid": _UUID % (_HEX, _HEX),
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "json-pointer": "(/([^/~]|~[01])*)*",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
    "base64url": "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?",
    **{f"uuid{version}": _UUID % (version, "[89abAB]") for version in (1, 3, 4, 5, 6, 7, 8)},
}
STRING_FORMATS = frozenset(_PATTERNS)

# Any text is one of these: they say how it is shown, or what it is meant for.
PLAIN_FORMATS = frozenset({"password", "binary", "path"})

# OpenAPI's: any number is a float, and an integer has a width.
NUMBER_FORMATS = frozenset({"float", "double"})
INTEGER_FORMATS = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1), "uint8": (0, 2**8 - 1), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}  # fmt: skip


@cache
def format_texts(name: str) -> Nfa:
    """The texts of a format in `STRING_FORMATS`."""
    return full_match(_PATTERNS[name])
