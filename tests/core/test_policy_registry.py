"""Finding and checking scheduling policies, with plugins that are whole, old, broken or in another's place."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator

import pytest

from asyncpage.config import EngineConfig
from asyncpage.core import plugin_group
from asyncpage.core.policy import Fcfs, LongestPrefix, Policy, Priority
from asyncpage.core.policy_registry import BUILT_IN, POLICIES, load_policy, policy_names
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError

Install = Callable[..., None]


class ShortestFirst(Fcfs):
    """A third party's fine policy."""

    name = "shortest-first"

    def key(self, sequence):
        return (sequence.limit, sequence.arrival)


class FromTheFuture(ShortestFirst):
    api = 2


class Unversioned(ShortestFirst):
    api = "one"


class Nameless(ShortestFirst):
    name = ""


class Undecided(ShortestFirst):
    wants_hits = None


class Keyless(ShortestFirst):
    key = None


class Curious(ShortestFirst):
    def key(self, sequence, clock):
        return (clock, sequence.arrival)


class Demanding(ShortestFirst):
    def __init__(self):
        raise RuntimeError("no licence")


NOT_A_CLASS = 7


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replaces the installed entry points by the named objects of this module."""

    def install(*pairs: tuple[str, str]) -> None:
        monkeypatch.setitem(sys.modules, "plugin_home", sys.modules[ShortestFirst.__module__])
        entries = [
            importlib.metadata.EntryPoint(name, value if ":" in value else f"plugin_home:{value}", POLICIES.group)
            for name, value in pairs
        ]
        monkeypatch.setattr(plugin_group, "entry_points", lambda group: {POLICIES.group: entries}[group])
        plugin_group.plugins.cache_clear()

    yield install
    plugin_group.plugins.cache_clear()


@pytest.mark.parametrize(
    ("name", "policy"), [("fcfs", Fcfs), ("priority", Priority), ("longest-prefix", LongestPrefix)]
)
def test_the_built_in_policies_are_there_with_entry_points_and_without(
    plugins: Install, name: str, policy: type[Policy]
) -> None:
    assert type(load_policy(name)) is policy
    plugins()
    assert type(load_policy(name)) is policy
    assert policy_names() == ("fcfs", "priority", "longest-prefix")


def test_the_installed_package_declares_its_policies_as_entry_points() -> None:
    declared = {entry.name: entry.load() for entry in importlib.metadata.entry_points(group=POLICIES.group)}
    assert declared.items() >= BUILT_IN.items()


def test_every_load_makes_a_policy_of_its_own() -> None:
    assert load_policy("fcfs") is not load_policy("fcfs")


def test_a_strangers_policy_is_found_by_its_entry_point(plugins: Install) -> None:
    plugins(("shortest", "ShortestFirst"), ("aged", "ShortestFirst"))
    assert type(load_policy("shortest")) is ShortestFirst
    assert policy_names() == ("fcfs", "priority", "longest-prefix", "aged", "shortest")


def test_an_unknown_name_is_answered_with_the_known_ones(plugins: Install) -> None:
    plugins(("shortest", "ShortestFirst"))
    with pytest.raises(UsageError) as caught:
        load_policy("lifo")
    assert str(caught.value) == (
        "There is no scheduling policy 'lifo'; --scheduling-policy takes fcfs, priority, longest-prefix or shortest."
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("Nowhere", "cannot be loaded: AttributeError"),
        ("nowhere.at.all:Policy", "cannot be loaded: ModuleNotFoundError"),
        ("NOT_A_CLASS", "its entry point names 7, which is not a class"),
        ("Unversioned", "'api' must be the contract's version, a whole number from 1, found 'one'"),
        ("FromTheFuture", "'api' is 2, this asyncpage speaks contract 1; install a newer asyncpage"),
        ("Nameless", "'name' must be a word, found ''"),
        ("Undecided", "'wants_hits' must be True or False"),
        ("Keyless", "has no method 'key'"),
        ("Curious", "method 'key' does not take (self, sequence): missing a required argument: 'clock'"),
        ("Demanding", "cannot be built: RuntimeError: no licence"),
    ],
)
def test_a_broken_plugin_is_refused_by_name_and_stops_only_who_asked_for_it(
    plugins: Install, target: str, reason: str
) -> None:
    plugins(("broken", target), ("shortest", "ShortestFirst"))
    with pytest.raises(UsageError) as caught:
        load_policy("broken")
    text = str(caught.value)
    assert text.startswith("Scheduling policy 'broken' (")
    assert target in text
    assert reason in text
    assert text.endswith("Mend it, or pass --scheduling-policy with one of fcfs, priority, longest-prefix.")
    assert type(load_policy("shortest")) is ShortestFirst
    assert type(load_policy("fcfs")) is Fcfs


def test_nobody_takes_the_name_of_a_built_in_policy_or_of_another_plugin(plugins: Install) -> None:
    plugins(("priority", "ShortestFirst"), ("mine", "ShortestFirst"), ("mine", "Curious"))
    for name, owners in (("priority", "asyncpage.core.policy:Priority, plugin_home:ShortestFirst"), ("mine", "")):
        with pytest.raises(UsageError, match=f"{name!r} has more than one owner: {owners}.*Uninstall all but one"):
            load_policy(name)
    assert type(load_policy("fcfs")) is Fcfs


def test_an_entry_point_that_is_found_twice_is_one_policy(plugins: Install) -> None:
    plugins(("mine", "ShortestFirst"), ("mine", "ShortestFirst"), ("fcfs", "asyncpage.core.policy:Fcfs"))
    assert type(load_policy("mine")) is ShortestFirst
    assert type(load_policy("fcfs")) is Fcfs


async def test_the_engine_refuses_an_unknown_policy_before_it_looks_for_a_model() -> None:
    with pytest.raises(UsageError, match="There is no scheduling policy 'lifo'"):
        await AsyncEngine.start(EngineConfig(model="/nowhere", scheduling_policy="lifo"))
