"""Number shapes: bounds and multiples together, as an automaton of decimal numbers.

The compiler writes what it gives. Without a bound, an integer has `MAX_INT_DIGITS` digits at most, so that an answer
of digits alone comes to an end. A number with bounds or multiples has no exponent, and so few places that a double
tells it from the bound.

INVARIANT: every number that is written is within the bounds and a multiple, also after it was rounded to a double.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, reduce

from asyncpage.grammar.decimals import common_multiple, multiples, scaled, within
from asyncpage.grammar.dfa import both, minimal
from asyncpage.grammar.json_text import MAX_INT_DIGITS, JsonText
from asyncpage.grammar.nfa import Nfa
from asyncpage.grammar.refusal import too_large
from asyncpage.grammar.schema_assertions import Limit
from asyncpage.grammar.schema_shape import Shape

MAX_BOUND_DIGITS = 40  # before the point: bounds with as many are exact
DOUBLE_DIGITS = 15  # significant digits that every double keeps apart


def write_number(json: JsonText, shape: Shape, *, is_whole: bool, source: int, target: int) -> None:
    """The numbers of a shape from `source` to `target`. Equal shapes share a rule. Errors: 400."""
    low, high, steps = shape.low, shape.high, shape.multiples
    if low is None and high is None and not steps:
        (json.any_integer if is_whole else json.any_number)(source, target)
        return
    far = 10**MAX_BOUND_DIGITS
    for limit, is_far in ((low, low is not None and low[0] > far), (high, high is not None and high[0] < -far)):
        if is_far:
            path = next(one.path for one in shape.assertions if limit in (one.low, one.high))
            raise too_large(f"a bound may have at most {MAX_BOUND_DIGITS} digits before the point", path)
    step = reduce(common_multiple, (Fraction(one) for one in sorted(steps))) if steps else None
    numbers = _numbers(low, high, step, is_whole)
    key = ("number", low, high, step, is_whole)
    json.shared(key, lambda start, final: json.number(numbers, start, final), source, target)


@lru_cache(maxsize=64)
def _numbers(low: Limit | None, high: Limit | None, step: Fraction | None, is_whole: bool) -> Nfa:
    decimals = 0 if is_whole else _decimals(low, high, step)
    unit = 10**decimals
    first = None if low is None else scaled(low[0], decimals, is_low=True, is_outside=low[1])
    last = None if high is None else scaled(high[0], decimals, is_low=False, is_outside=high[1])
    # An end that is open is as far as an answer of digits alone may go, or a digit past the other where that is
    # farther; so is an end too far away to count digits for.
    limit, exact = 10**MAX_INT_DIGITS * unit - 1, 10**MAX_BOUND_DIGITS * unit
    least = min(-limit, (last or 0) * 10 - 9 * unit)
    most = max(limit, (first or 0) * 10 + 9 * unit)
    first = least if first is None or first < -exact else first
    last = most if last is None or last > exact else last
    numbers = within(first, last, decimals)
    if step is None or numbers.is_empty:
        return numbers
    whole_step = step.numerator if is_whole else int(step * unit)
    return both(numbers, minimal(multiples(whole_step, decimals)))


def _decimals(low: Limit | None, high: Limit | None, step: Fraction | None) -> int:
    """Places after the point: those of the step, or as many as leave a number apart from a bound that is outside."""
    if step is not None:
        return next(places for places in range(2_000) if step * 10**places == int(step * 10**places))
    digits = [len(str(abs(int(limit[0])))) for limit in (low, high) if limit is not None and limit[1]]
    return max(DOUBLE_DIGITS - max(digits, default=0), 0)
