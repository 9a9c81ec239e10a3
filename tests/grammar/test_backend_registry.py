"""Finding grammar backends, plugins that are whole, broken or in another's place, and libraries that are missing."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from asyncpage.config import EngineConfig
from asyncpage.core import plugin_group
from asyncpage.engine import AsyncEngine
from asyncpage.errors import UsageError
from asyncpage.grammar.backend_registry import BACKENDS, load_backend
from asyncpage.grammar.builtin import BuiltinBackend

Install = Callable[..., None]


class Good(BuiltinBackend):
    """A third party's fine backend."""

    name = "good"


class Unreadable(Good):
    reader = None


class Incurious(Good):
    def compile(self):
        return b""


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replaces the installed entry points by the named objects of this module."""

    def install(*pairs: tuple[str, str]) -> None:
        monkeypatch.setitem(sys.modules, "plugin_home", sys.modules[__name__])
        entries = [importlib.metadata.EntryPoint(name, f"plugin_home:{value}", BACKENDS.group) for name, value in pairs]
        monkeypatch.setattr(plugin_group, "entry_points", lambda group: {BACKENDS.group: entries}[group])
        plugin_group.plugins.cache_clear()

    yield install
    plugin_group.plugins.cache_clear()


def refusal(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_backend(name)
    return str(caught.value)


def test_the_built_in_one_is_there_and_one_of_others_is_found_by_its_entry_point(plugins: Install) -> None:
    assert type(load_backend("builtin")) is BuiltinBackend
    plugins(("good", "Good"))
    assert type(load_backend("builtin")) is BuiltinBackend
    assert type(load_backend("good")) is Good


def test_an_unknown_name_is_answered_with_the_known_ones(plugins: Install) -> None:
    plugins(("good", "Good"))
    assert refusal("other") == (
        "There is no grammar backend 'other'; --grammar-backend takes builtin, llguidance, xgrammar or good."
    )


def test_what_breaks_the_contract_is_refused_with_the_method(plugins: Install) -> None:
    plugins(("a", "Unreadable"), ("b", "Incurious"), ("xgrammar", "Good"))
    assert "has no method 'reader'" in refusal("a")
    assert "method 'compile' does not take (self, source)" in refusal("b")
    assert "more than one owner" in refusal("xgrammar")


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_a_library_that_is_not_installed_is_named_by_what_to_type(name: str) -> None:
    with patch(f"asyncpage.grammar.{name}_backend.find_spec", return_value=None):
        assert refusal(name) == f"Grammar backend '{name}' is not installed: pip install 'asyncpage[{name}]'"


async def test_the_engine_refuses_an_unknown_backend_before_it_looks_for_a_model() -> None:
    with pytest.raises(UsageError, match="There is no grammar backend 'other'"):
        await AsyncEngine.start(EngineConfig(model="/nowhere", grammar_backend="other"))
