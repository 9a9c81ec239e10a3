"""Texts and TOML values as the values of settings; what does not fit is told together with what would.

`settings` asks here for every value it finds, whichever source it came from.

INVARIANT: a value is never guessed: it has its setting's type and is one of its choices, or `UsageError` is raised.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from asyncpage.errors import UsageError

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_EXAMPLES = {"tokens": "4096", "seconds": "60", "blocks": "1000"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a configuration dataclass, as its flag, its variable and its TOML key see it.

    `room` is the TOML table, `kind` the type of one value, `repeated` says that the setting is a tuple of them and
    `optional` that it may stay unset.
    """

    room: str
    name: str
    kind: type
    optional: bool
    repeated: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    unit: str

    @property
    def names(self) -> tuple[str, ...]:
        """The words that name it, the preferred one first: a trailing unit of seconds may be left out."""
        short = self.name.removesuffix("_s")
        return (self.name,) if short == self.name else (short, self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple("--" + name.replace("_", "-") for name in self.names)

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple("ASYNCPAGE_" + name.upper() for name in self.names)

    @property
    def is_secret(self) -> bool:
        return self.name == "api_key"


def value_from_text(setting: Setting, text: str, origin: str) -> Any:
    """One value from a flag or an environment variable.

    `origin` names the flag or variable for the error. Errors: `UsageError` that says what to type.
    """
    if setting.kind is bool:
        word = text.strip().lower()
        if word not in _TRUE + _FALSE:
            raise UsageError(f"{origin} takes true or false, got {text!r}")
        return word in _TRUE
    if setting.kind is str:
        return _chosen(setting, text, origin)
    if setting.unit == "bytes":
        return _size(setting, text, origin)
    return _number(setting, text, origin)


def value_from_toml(setting: Setting, value: object, origin: str) -> Any:
    """One setting's whole value from a TOML file: texts are read as on the command line where numbers may have units.

    Errors: `UsageError` that says what to write.
    """
    if setting.repeated:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            found = "something else" if setting.is_secret else repr(value)
            raise UsageError(f'{origin} takes a list of strings, such as ["a", "b"]; got {found}')
        return tuple(_chosen(setting, item, origin) for item in value)
    if isinstance(value, str) and (setting.kind is str or setting.unit == "bytes"):
        return value_from_text(setting, value, origin)
    if isinstance(value, bool) or setting.kind is bool:  # a bool is an int to Python, not to TOML
        if isinstance(value, bool) and setting.kind is bool:
            return value
    elif isinstance(value, int) and setting.kind is int:
        return value
    elif isinstance(value, int | float) and setting.kind is float:
        return _number(setting, value, origin)
    raise _misfit(setting, value, origin)


def size_text(count: int) -> str:
    """Bytes in the largest unit that divides them: 33554432 is 32MiB."""
    for letter in "TGMK":
        unit = 1024 ** _POWERS[letter]
        if count >= unit and count % unit == 0:
            return f"{count // unit}{letter}iB"
    return str(count)


def _chosen(setting: Setting, text: str, origin: str) -> str:
    if setting.choices and text not in setting.choices:
        raise UsageError(f"{origin} must be one of {', '.join(setting.choices)}; got {text!r}")
    return text


def _number(setting: Setting, value: str | float, origin: str) -> int | float:
    try:
        number: int | float = setting.kind(value)
    except (ValueError, OverflowError):
        raise _misfit(setting, value, origin) from None
    if isinstance(number, float) and not math.isfinite(number):
        raise _misfit(setting, value, origin)
    return number


def _size(setting: Setting, text: str, origin: str) -> int:
    """Bytes: 512M and 512MiB count in powers of 1024, 512MB in powers of 1000, a bare number as it is."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _misfit(setting, text, origin)
    number, letter, suffix = match.groups()
    base = 1000 if letter and suffix.upper() == "B" else 1024
    return int(Fraction(number) * base ** _POWERS[letter.upper()])


def _misfit(setting: Setting, value: object, origin: str) -> UsageError:
    if setting.kind is str:
        return UsageError(f"{origin} takes a text, got {value!r}")
    if setting.kind is bool:
        return UsageError(f"{origin} takes true or false, got {value!r}")
    if setting.unit == "bytes":
        return UsageError(f"{origin} takes a size, got {value!r}; 512M, 2GiB or 10GB would do")
    example = _EXAMPLES.get(setting.unit, "1") if setting.default is None else setting.default
    what = "a whole number" if setting.kind is int else "a number"
    of_unit = f" of {setting.unit}" if setting.unit else ""
    return UsageError(f"{origin} takes {what}{of_unit}, got {value!r}; {setting.flags[0]} {example} would do")
