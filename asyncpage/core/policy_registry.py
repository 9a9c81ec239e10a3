"""Finds scheduling policies, the built-in ones and those of entry points, and checks them when they are loaded.

Asked by the engine before anything is started, and by the scheduler at birth. A policy of others is loaded only when
it is asked for.

INVARIANT: a name stands for one class. A plugin that takes another's name, cannot be loaded or breaks the contract is
refused by name, and stops nobody who did not ask for that name.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from asyncpage.core.policy import API, Fcfs, LongestPrefix, Policy, Priority
from asyncpage.errors import UsageError

GROUP = "asyncpage.policies"

# They need no entry point, so an installation that is older than a policy has it all the same.
BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in (Fcfs, Priority, LongestPrefix)}


def policy_names() -> tuple[str, ...]:
    """Every policy that can be asked for: the built-in ones, then plugins by name. None is loaded for this."""
    return (*BUILT_IN, *sorted(_plugins().keys() - BUILT_IN.keys()))


def load_policy(name: str) -> Policy:
    """A new object of the policy called `name`.

    Errors: `UsageError` when there is none, when two claim the name, or when the plugin breaks the contract: it names
    the plugin, what is wrong with it and what to do.
    """
    found = _plugins().get(name, ())
    built_in = BUILT_IN.get(name)
    own = () if built_in is None else (f"{built_in.__module__}:{built_in.__qualname__}",)
    values = dict.fromkeys((*own, *(entry.value for entry in found)))
    if len(values) > 1:
        claims = ", ".join([*own, *(_origin(entry) for entry in found if entry.value not in own)])
        raise UsageError(f"Scheduling policy {name!r} has more than one owner: {claims}. Uninstall all but one.")
    if built_in is not None:
        return built_in()
    if not found:
        raise UsageError(f"There is no scheduling policy {name!r}; --scheduling-policy takes {_listed()}.")
    return _made(found[0])


@cache
def _plugins() -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points by name. What is installed does not change while a process runs, and reading it takes 8 ms."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _made(entry: EntryPoint) -> Policy:
    try:
        policy: Any = entry.load()
    except Exception as error:  # whatever a stranger's module raises
        raise _refused(entry, f"cannot be loaded: {type(error).__name__}: {error}") from error
    broken = _breaches(policy)
    if broken:
        raise _refused(entry, "; ".join(broken))
    try:
        return cast(Policy, policy())
    except Exception as error:  # the same
        raise _refused(entry, f"cannot be built: {type(error).__name__}: {error}") from error


def _breaches(policy: Any) -> tuple[str, ...]:
    """Where a loaded object breaks the contract's form, by attribute."""
    if not inspect.isclass(policy):
        return (f"its entry point names {policy!r}, which is not a class",)
    api: Any = getattr(policy, "api", None)
    if type(api) is not int or api < 1:
        return (f"'api' must be the contract's version, a whole number from 1, found {api!r}",)
    if api > API:  # the rest is another version's business
        return (f"'api' is {api}, this asyncpage speaks contract {API}; install a newer asyncpage",)
    found = []
    name: Any = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        found.append(f"'name' must be a word, found {name!r}")
    if not isinstance(getattr(policy, "wants_hits", None), bool):
        found.append("'wants_hits' must be True or False: whether its keys depend on hit_blocks")
    key = getattr(policy, "key", None)
    if not callable(key):
        found.append("has no method 'key'")
    else:
        try:
            inspect.signature(key).bind("self", "sequence")
        except (TypeError, ValueError) as error:
            found.append(f"method 'key' does not take (self, sequence): {error}")
    return tuple(found)


def _refused(entry: EntryPoint, reason: str) -> UsageError:
    return UsageError(
        f"Scheduling policy {entry.name!r} ({_origin(entry)}) cannot be used: {reason}. "
        f"Mend it, or pass --scheduling-policy with one of {', '.join(BUILT_IN)}."
    )


def _origin(entry: EntryPoint) -> str:
    brought = f" from {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"{entry.value}{brought}"


def _listed() -> str:
    *most, last = policy_names()
    return f"{', '.join(most)} or {last}"
