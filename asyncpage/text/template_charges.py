"""What each operation of a chat template costs.

The sandbox asks here before it does anything.

INVARIANT: a charge is in proportion to the work and to the size of the result, or above it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Macro

from asyncpage.text.template_budget import CHARACTERS_A_UNIT, Budget, TemplateTooCostly

MAX_INTEGER_BITS = 4096  # multiplying longer ones in a loop grows without end
MAX_WIDTH = 9999
ITEMS_A_UNIT = 16  # of a list or text that an operation goes through on the outside

# Filters that look at their value's outside only, or hand its items on to other, charged filters and tests; of
# these, the ones that go through all of them.
SHALLOW = frozenset(
    (
        *("length", "count", "first", "last", "default", "d", "items", "list", "reverse"),
        *("map", "select", "reject", "selectattr", "rejectattr"),
    )
)
_COPYING = frozenset(("list", "reverse"))
# Tests that compare; all others look at what their value is.
COMPARING = frozenset(
    (
        *("==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le"),
        *(">", "gt", "greaterthan", ">=", "ge", "in", "lower", "upper"),
    )
)
# Filters and methods whose work or result may be as long as the product of what they are given.
_MULTIPLYING = frozenset(
    (
        *("indent", "batch", "slice", "tojson", "join", "round"),
        *("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"),
    )
)
# Fields of five digits, or of a width or precision that is given elsewhere: of "%" formats, then of "{}" ones.
_WIDE_FIELD = re.compile(
    r"%(\([^)]*\))?[-#0 +]*(\d{5}|\*)|%(\([^)]*\))?[-#0 +\d]*\.(\d{5}|\*)|\{[^{}]*:[^{}]*(\d{5}|\{)"
)


class MeteredContext(Context):
    """The variables of one rendering, and its budget."""

    budget: Budget

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        context = super().derived(locals)
        assert isinstance(context, MeteredContext)
        context.budget = self.budget
        return context


def budget_of(context: Context) -> Budget:
    """What this rendering may still spend."""
    assert isinstance(context, MeteredContext)
    return context.budget


def metered(name: str, function: Callable[..., Any], is_shallow: bool) -> Callable[..., Any]:
    """A filter or test that charges for its arguments first; a lazy argument is drawn out, to be seen whole."""
    takes = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def charged(context: Context, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        if is_shallow:
            copies = name in _COPYING and args and has_size(args[0])
            budget.spend(1 + (len(args[0]) // ITEMS_A_UNIT if copies else 0))
        else:
            budget.spend(2)  # a filter on each of many small items
            args = tuple(list(arg) if isinstance(arg, GeneratorType) else arg for arg in args)
            _charge_work(budget, name, args[0] if args else None, (*args[1:], *kwargs.values()))
        match takes.name if takes is not None else None:
            case "context":
                return function(context, *args, **kwargs)
            case "eval_context":
                return function(context.eval_ctx, *args, **kwargs)
            case "environment":
                return function(context.environment, *args, **kwargs)
            case _:
                return function(*args, **kwargs)

    return charged


def charge_call(budget: Budget, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge for a call that the template writes: a macro's own work is charged as it is done."""
    if isinstance(function, Macro) and not function.catch_varargs and not function.catch_kwargs:
        budget.spend(1)
    elif isinstance(function, BuiltinMethodType | MethodType):
        owner = function.__self__
        if function.__name__ == "translate":
            raise SecurityError("translate is not available to chat templates")
        outside = None if isinstance(owner, dict) else owner
        _charge_work(budget, function.__name__, outside, (*args, *kwargs.values()))
    else:
        budget.weigh(args, kwargs)


def _charge_work(budget: Budget, name: str, value: Any, others: tuple[Any, ...]) -> None:
    """Charge for an operation that looks at all of its arguments, and for results longer than them."""
    units = budget.weigh(value, *others)
    if name == "replace" and isinstance(value, str) and len(others) > 1 and isinstance(others[0], str):
        budget.spend_text(len(value) + value.count(others[0]) * len(str(others[1])))
    elif name in _MULTIPLYING:
        factor = 0
        for other in others:
            if isinstance(other, int):
                if abs(other) > MAX_WIDTH:
                    raise TemplateTooCostly(f"it gives {name} the number {other}, at most {MAX_WIDTH} is allowed")
                factor += abs(other)
            elif isinstance(other, str):
                factor += len(other)
        length = len(value) if has_size(value) else 1
        if isinstance(value, str) and name == "join":  # the method: its text goes between the items
            factor, length = length, sum(len(other) for other in others if has_size(other))
        budget.spend_text(factor * length)
        budget.spend(units)


def charge_format(budget: Budget, format: str, values: tuple[Any, ...]) -> None:
    """Charge for `format` with `values` in its places, of which any may be used in every place."""
    if _WIDE_FIELD.search(format):
        raise TemplateTooCostly(f"it uses a format with a field wider than {MAX_WIDTH}, or of a width given elsewhere")
    places = format.count("%") + format.count("{") + 1
    units = budget.weigh(values)
    budget.spend_text(len(format) + places * (units * CHARACTERS_A_UNIT + MAX_WIDTH // 100))


def check_bits(bits: int) -> None:
    """Errors: `TemplateTooCostly` for a whole number of so many bits."""
    if bits > MAX_INTEGER_BITS:
        raise TemplateTooCostly(f"it computes a number of {bits} bits, at most {MAX_INTEGER_BITS} are allowed")


def has_size(value: Any) -> bool:
    """Whether `len` tells how much there is to go through."""
    return isinstance(value, str | bytes | list | tuple | dict | range)
