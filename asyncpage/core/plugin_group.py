"""A kind of plugin: finds its classes, the built-in ones and those of entry points, and checks them when loaded.

The registries of scheduling policies and of parsers are groups. A class of others is loaded only when it is asked for.

INVARIANT: a name stands for one class. A plugin that takes another's name, cannot be loaded or breaks the contract is
refused by name, and stops nobody who did not ask for that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from asyncpage.errors import UsageError

Plugin = TypeVar("Plugin")


class PluginGroup(Generic[Plugin]):
    """One group of entry points.

    `what`: what a plugin of it is called, in lower case. `flag`: the one that names it, None where no flag does.
    `api`: the contract's newest version. `built_in`: classes by name; they need no entry point, so an installation
    that is older than one has it all the same. `breaches`: where a class breaks the contract's form, beside its version
    and its name.
    """

    def __init__(
        self,
        group: str,
        *,
        what: str,
        flag: str | None,
        api: int,
        built_in: Mapping[str, type[Plugin]],
        breaches: Callable[[Any], Sequence[str]],
    ) -> None:
        self.group = group
        self.built_in = built_in
        self._what = what
        self._flag = flag
        self._api = api
        self._breaches = breaches

    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for: the built-in ones, then plugins by name. None is loaded for this."""
        return (*self.built_in, *sorted(plugins(self.group).keys() - self.built_in.keys()))

    def load(self, name: str, *arguments: object) -> Plugin:
        """A new object of the class called `name`, made of `arguments`.

        Errors: `UsageError` when there is none, when two claim the name, or when the plugin breaks the contract: it
        names the plugin, what is wrong with it and what to do.
        """
        found = plugins(self.group).get(name, ())
        built_in = self.built_in.get(name)
        own = () if built_in is None else (f"{built_in.__module__}:{built_in.__qualname__}",)
        values = dict.fromkeys((*own, *(entry.value for entry in found)))
        if len(values) > 1:
            claims = ", ".join([*own, *(_origin(entry) for entry in found if entry.value not in own)])
            raise UsageError(
                f"{self._what.capitalize()} {name!r} has more than one owner: {claims}. Uninstall all but one."
            )
        if built_in is not None:
            return built_in(*arguments)
        if not found:
            *most, last = self.names()
            takes = f"{self._flag} takes" if self._flag else "there is"
            raise UsageError(f"There is no {self._what} {name!r}; {takes} {', '.join(most)} or {last}.")
        return self._made(found[0], arguments)

    def _made(self, entry: EntryPoint, arguments: Sequence[object]) -> Plugin:
        try:
            plugin: Any = entry.load()
        except Exception as error:  # whatever a stranger's module raises
            raise self._refused(entry, f"cannot be loaded: {type(error).__name__}: {error}") from error
        broken = self._broken(plugin)
        if broken:
            raise self._refused(entry, "; ".join(broken))
        try:
            return cast(Plugin, plugin(*arguments))
        except Exception as error:  # the same
            raise self._refused(entry, f"cannot be built: {type(error).__name__}: {error}") from error

    def _broken(self, plugin: Any) -> Sequence[str]:
        if not inspect.isclass(plugin):
            return (f"its entry point names {plugin!r}, which is not a class",)
        api: Any = getattr(plugin, "api", None)
        if type(api) is not int or api < 1:
            return (f"'api' must be the contract's version, a whole number from 1, found {api!r}",)
        if api > self._api:  # the rest is another version's business
            return (f"'api' is {api}, this asyncpage speaks contract {self._api}; install a newer asyncpage",)
        name: Any = getattr(plugin, "name", None)
        nameless = () if isinstance(name, str) and name else (f"'name' must be a word, found {name!r}",)
        return (*nameless, *self._breaches(plugin))

    def _refused(self, entry: EntryPoint, reason: str) -> UsageError:
        other = f", or pass {self._flag} with one of {', '.join(self.built_in)}" if self._flag else " or uninstall it"
        return UsageError(
            f"{self._what.capitalize()} {entry.name!r} ({_origin(entry)}) cannot be used: {reason}. Mend it{other}."
        )


def breaches_of_method(
    plugin: Any, name: str, arguments: Sequence[str], keywords: Sequence[str] = ()
) -> tuple[str, ...]:
    """What is wrong with a class's method `name` for who calls it with `arguments`, `self` among them."""
    method = getattr(plugin, name, None)
    if not callable(method):
        return (f"has no method {name!r}",)
    try:
        inspect.signature(method).bind(*arguments, **dict.fromkeys(keywords))
    except (TypeError, ValueError) as error:
        taken = ", ".join([*arguments, *(f"{keyword}=..." for keyword in keywords)])
        return (f"method {name!r} does not take ({taken}): {error}",)
    return ()


@cache
def plugins(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points by name. What is installed does not change while a process runs, and reading it takes 8 ms."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _origin(entry: EntryPoint) -> str:
    brought = f" from {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"{entry.value}{brought}"
