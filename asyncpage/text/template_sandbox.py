"""The Jinja environment in which a chat template runs: sandboxed, immutable, and paying for every step.

`chat_template` compiles and renders in it. A template comes with a model file and is nobody's trusted code.

INVARIANT: a template reaches nothing but the values it is given, and every operation whose cost can grow is
charged to the rendering's budget before it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from asyncpage.text.template_charges import (
    COMPARING,
    ITEMS_A_UNIT,
    SHALLOW,
    MeteredContext,
    budget_of,
    charge_call,
    charge_format,
    check_bits,
    has_size,
    metered,
)
from asyncpage.text.template_meter import Meter

# Nobody's chat template uses these, and their cost is not that of what they are given.
_LEFT_OUT_FILTERS = ("center", "wordwrap", "urlize", "xmlattr", "pprint", "random", "filesizeformat", "striptags")
_LEFT_OUT_GLOBALS = ("lipsum",)


class _Charge:
    """A function that only the meter's calls can reach."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class TemplateNamespace(Namespace):
    """Refuses names with a leading underscore, and does not write itself out, however deeply it is nested."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no name of ours may stand in the way of a keyword's
        self, args = args[0], args[1:]
        given = dict(*args, **kwargs)
        for name in given:
            _check_name(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; here it is only seen through."""

    tags = {"generation"}  # noqa: RUF012 (the library's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """One a template. Its contexts must be given a `budget` before they are rendered."""

    context_class = MeteredContext
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
        for name in _LEFT_OUT_FILTERS:
            del self.filters[name]
        for name in _LEFT_OUT_GLOBALS:
            del self.globals[name]
        self.filters["tojson"] = to_json
        filters: dict[str, Any] = {**self.filters}
        tests: dict[str, Any] = {**self.tests}
        self.filters.update((name, metered(name, call, name in SHALLOW)) for name, call in filters.items())
        self.tests.update((name, metered(name, call, name not in COMPARING)) for name, call in tests.items())
        self.globals.update(raise_exception=raise_exception, namespace=TemplateNamespace, dict=make_dict)
        self.finalize = _put_out
        self.spend = _Charge(_spend)
        self.weighed = _Charge(_weighed)
        self.sized = _Charge(_sized)
        self.concatenated = _Charge(_concatenated)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Meter().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as the library does: keywords)
        if type(__obj) is _Charge:
            return __obj.function(__context, *args)
        charge_call(budget_of(__context), __obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = budget_of(context)
        if operator == "%" and isinstance(left, str):
            charge_format(budget, left, (right,))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() + right.bit_length())
        elif operator == "*":
            count = max([item for item in (left, right) if isinstance(item, int)], default=1)
            budget.spend_text(max(0, count) * max([len(item) for item in (left, right) if has_size(item)], default=1))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                check_bits(left.bit_length() * abs(right))
        elif has_size(left) and has_size(right):
            budget.spend_text(len(left) + len(right))
        budget.spend(1)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @pass_context
        def formatted(context: Context, *args: Any, **kwargs: Any) -> str:
            charge_format(budget_of(context), value.__self__, (args, kwargs))
            return wrapped(*args, **kwargs)

        return formatted


def raise_exception(message: str) -> None:
    """A template's own way to refuse a conversation."""
    raise TemplateError(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: characters as they are, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def time_format(wall_s: float) -> Callable[[str], str]:
    """`strftime_now` for a rendering at `wall_s` seconds since the epoch, in local time."""
    return lambda format: datetime.fromtimestamp(wall_s).strftime(format)


def make_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """`dict`, but not the class, whose attributes lead further."""
    return dict(*args, **kwargs)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace of a chat template cannot hold {name!r}: it begins with an underscore")


def _spend(context: Context, units: int) -> bool:
    budget_of(context).spend(units)
    return True


def _weighed(context: Context, value: Any) -> Any:
    budget_of(context).weigh(value)
    return value


def _sized(context: Context, value: Any) -> Any:
    budget_of(context).spend(1 + (len(value) // ITEMS_A_UNIT if has_size(value) else 0))
    return value


def _concatenated(context: Context, *values: Any) -> str:
    budget = budget_of(context)
    budget.weigh(values)
    texts = [value if isinstance(value, str) else str(value) for value in values]
    budget.spend_text(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _put_out(context: Context, value: Any) -> str:
    budget = budget_of(context)
    if not isinstance(value, str):
        budget.weigh(value)
    text = str(value)
    budget.spend_output(len(text))
    return text
