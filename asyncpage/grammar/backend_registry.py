"""Finds grammar backends, those that come along and those of entry points.

Asked by the engine before anything is started, then by the compile worker and by the executor.

INVARIANT: what `load_backend` returns keeps the contract of `backend.GrammarBackend` in form, and its packages are
there.
"""

from __future__ import annotations

from typing import Any

from asyncpage.core.plugin_group import PluginGroup, breaches_of_method
from asyncpage.errors import UsageError
from asyncpage.grammar.backend import API, GrammarBackend
from asyncpage.grammar.builtin import BuiltinBackend
from asyncpage.grammar.llguidance_backend import LlguidanceBackend
from asyncpage.grammar.xgrammar_backend import XgrammarBackend

# Those for libraries import them when they are used.
BUILT_IN: dict[str, type[GrammarBackend]] = {
    backend.name: backend for backend in (BuiltinBackend, LlguidanceBackend, XgrammarBackend)
}

_METHODS = {
    "missing": ("self",),
    "compile": ("self", "source"),
    "reader": ("self", "token_bytes", "vocab_size"),
}


def _breaches(backend: Any) -> tuple[str, ...]:
    return tuple(
        breach for name, arguments in _METHODS.items() for breach in breaches_of_method(backend, name, arguments)
    )


BACKENDS: PluginGroup[GrammarBackend] = PluginGroup(
    "asyncpage.grammar_backends",
    what="grammar backend",
    flag="--grammar-backend",
    api=API,
    built_in=BUILT_IN,
    breaches=_breaches,
)


def load_backend(name: str) -> GrammarBackend:
    """A new object of the backend called `name`.

    Errors: `UsageError` when there is none, when two claim the name, when the plugin breaks the contract, or when
    packages are missing: it names what is wrong and what to do.
    """
    backend = BACKENDS.load(name)
    if missing := backend.missing():
        raise UsageError(f"Grammar backend {name!r} is not installed: pip install {missing!r}")
    return backend
