"""Every setting from its four sources: flag over `ASYNCPAGE_*` variable over TOML file over default.

The flags, the variables' names and the file's keys are all read from the fields of the configuration dataclasses.
The commands call `declare` on their parser and `resolve` on what it parsed.

INVARIANT: each value is known together with the source that it came from, and no source is ever half read: an
unknown key or a value of the wrong kind is refused by name.
"""

from __future__ import annotations

import argparse
import difflib
import json
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from asyncpage.cli.command import Environment
from asyncpage.cli.value import Setting, size_text, value_from_text, value_from_toml
from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig

ROOMS: Mapping[str, type[EngineConfig] | type[ServerConfig]] = {"engine": EngineConfig, "server": ServerConfig}

# Variables of ours that are not settings.
_OTHER_VARIABLES = ("ASYNCPAGE_CACHE",)

# Names that users of similar servers type by habit, beside our own.
_HABITS = {"log_requests": (("--disable-log-requests", "false"),)}


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration in force. `origins` tells where each field's value came from, by field name.

    `notes` are lines the user should see, such as a variable that looks like a setting but is none.
    """

    engine: EngineConfig
    server: ServerConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...]

    def check(self) -> None:
        """Errors: `UsageError` when values cannot work together, with everything that is wrong."""
        problems = [*self.engine.problems(), *self.server.problems()]
        if problems:
            raise UsageError("\n".join(problems))


def settings_of(room: str) -> tuple[Setting, ...]:
    """The settings of one room, in the order in which its dataclass declares them."""
    config = ROOMS[room]
    hints = get_type_hints(config)
    return tuple(
        Setting(room, item.name, *_kind(hints[item.name]), item.default, **item.metadata) for item in fields(config)
    )


def declare(parser: argparse.ArgumentParser, *rooms: str, only: Container[str] | None = None) -> None:
    """Add one flag for every setting of these rooms (of those `only` names), then `--config` and `--print-config`."""
    for room in rooms:
        group = parser.add_argument_group(f"{room} settings")
        for setting in settings_of(room):
            if only is None or setting.name in only:
                _add_flag(group, setting)
    group = parser.add_argument_group("where settings come from")
    group.add_argument("--config", metavar="FILE", help="a TOML file with the tables [engine] and [server]")
    group.add_argument(
        "--print-config", action="store_true", help="print every value and where it came from, as TOML, and exit"
    )


def declare_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, the word that may stand instead of `--model`."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", action=_Keep, help="what --model takes (default: the demo model)"
    )


def resolve(arguments: argparse.Namespace, environment: Environment) -> Settings:
    """Read all sources, nearest first.

    Errors: `UsageError` for a value of the wrong kind, an unknown key of the file, or a file that cannot be read.
    """
    file = Path(arguments.config) if arguments.config else None
    tables = _read_file(file) if file else {}
    origins: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {room: {} for room in ROOMS}
    for room in ROOMS:
        for setting in settings_of(room):
            value, origins[setting.name] = _find(setting, arguments, environment, tables.get(room, {}), file)
            values[room][setting.name] = value
    notes = tuple(_stray_variables(environment))
    return Settings(EngineConfig(**values["engine"]), ServerConfig(**values["server"]), origins, notes)


def show(settings: Settings) -> str:
    """The configuration as TOML with the origin of each value behind it.

    Secrets are only counted, in a comment: a mask in their place would become the key of who saves this and uses it.
    """
    lines = []
    for room in ROOMS:
        lines.append(f"[{room}]")
        for setting in settings_of(room):
            value = getattr(getattr(settings, room), setting.name)
            text = f"# {setting.name} is not set" if value is None else f"{setting.name} = {_toml(value)}"
            if setting.is_secret and value:
                text = f"# {setting.name} is not shown ({len(value)} given)"
            lines.append(f"{text:<48} # {settings.origins[setting.name]}")
        lines.append("")
    return "\n".join(lines[:-1])


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown word: a question for the closest known one, or a full stop."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f", did you mean {close[0]}?" if close else "."


class _Keep(argparse.Action):
    """Keeps (flag as typed, text) pairs, so that the source of a value can be named; conversion comes later."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values is None:
            return  # an optional word that was not given
        text = values
        if self.nargs == 0:
            text = self.const or ("false" if str(option_string).startswith("--no-") else "true")
        kept = getattr(namespace, self.dest, None) or ()
        setattr(namespace, self.dest, (*kept, (option_string or self.metavar, text)))


def _add_flag(group: Any, setting: Setting) -> None:
    help_text = setting.help.replace("%", "%%")
    shown, *hidden = setting.flags
    if setting.kind is bool:
        state = "on" if setting.default else "off"
        options: dict[str, Any] = {"dest": setting.name, "action": _Keep, "nargs": 0}
        group.add_argument(shown, "--no-" + shown.removeprefix("--"), help=f"{help_text} (default {state})", **options)
        for flag, text in _HABITS.get(setting.name, ()):
            group.add_argument(flag, const=text, help=argparse.SUPPRESS, **options)
        return
    if setting.default not in (None, (), ""):
        help_text += f" (default {size_text(setting.default) if setting.unit == 'bytes' else setting.default})"
    plain = "TEXT" if setting.kind is str else "N"
    metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else setting.unit.upper() or plain
    options = {"dest": setting.name, "action": _Keep, "metavar": metavar}
    group.add_argument(shown, help=help_text, **options)
    for flag in hidden:
        group.add_argument(flag, help=argparse.SUPPRESS, **options)


def _find(
    setting: Setting,
    arguments: argparse.Namespace,
    environment: Environment,
    table: Mapping[str, Any],
    file: Path | None,
) -> tuple[Any, str]:
    typed: Sequence[tuple[str, str]] = getattr(arguments, setting.name, None) or ()
    if typed:
        flag = typed[-1][0]
        if len({flag for flag, _ in typed} & {"MODEL", "--model"}) == 2:
            raise UsageError("MODEL and --model are the same setting; keep one of them")
        if setting.repeated:
            return tuple(value_from_text(setting, text, flag) for flag, text in typed), flag
        return value_from_text(setting, typed[-1][1], flag), flag
    variable = _only_one(setting.variables, environment)
    if variable is not None:
        text = environment[variable]
        if setting.repeated:
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return tuple(value_from_text(setting, part, variable) for part in parts), variable
        return value_from_text(setting, text, variable), variable
    key = _only_one(setting.names, table)
    if key is not None:
        origin = f"{file} [{setting.room}] {key}"
        return value_from_toml(setting, table[key], origin), origin
    return setting.default, "default"


def _only_one(names: Sequence[str], source: Mapping[str, Any]) -> str | None:
    found = [name for name in names if name in source]
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} are the same setting; keep one of them")
    return found[0] if found else None


def _read_file(file: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {file} is not TOML: {error}") from None
    for room, table in tables.items():
        if room not in ROOMS or not isinstance(table, dict):
            raise UsageError(
                f"{file}: {room} is not a table of settings{nearest(room, tuple(ROOMS))} "
                "Settings go under [engine] or [server]"
            )
        known = [name for setting in settings_of(room) for name in setting.names]
        for key in table:
            if key not in known:
                raise UsageError(f"{file}: [{room}] has no setting {key}{_elsewhere(key, room) or nearest(key, known)}")
    return tables


def _elsewhere(key: str, room: str) -> str:
    for other in ROOMS:
        if other != room and any(key in setting.names for setting in settings_of(other)):
            return f"; it belongs under [{other}]."
    return ""


def _stray_variables(environment: Environment) -> Iterator[str]:
    known = [name for room in ROOMS for setting in settings_of(room) for name in setting.variables]
    for name in sorted(environment):
        if name.startswith("ASYNCPAGE_") and name not in known and name not in _OTHER_VARIABLES:
            yield f"{name} is set but names no setting{nearest(name, known)}"


def _kind(hint: Any) -> tuple[type, bool, bool]:
    """(type of one value, may be unset, is a tuple of values) of a field's annotation."""
    if get_origin(hint) is tuple:
        return get_args(hint)[0], False, True
    if isinstance(hint, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return kinds[0], True, False
    return hint, False, False


def _toml(value: Any) -> str:
    """JSON's strings, numbers, booleans and lists of strings are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
