"""The arithmetic of expressions: `+ - * / // %` on numbers, and `+` on two texts or two lists. Pure.

In: two values and the budget that bounds the work. Out: a value, or an `EvaluationError`. As in Python, except that a result must be a finite
number of at most `MAX_BITS` bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, kind

MAX_BITS: Final = 14_000
"""The maximum size of a calculated whole number; about 4 200 digits."""

MAX_CHARACTERS: Final = 10_000_000
"""The longest text that `+` and `join` make."""

_NUMBERS = (int, float, Decimal)
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
SUMS: Final = ("+", "-")
PRODUCTS: Final = ("*", "/", "//", "%")


def calculated(sign: str, left: Any, right: Any, work: EvaluationBudget) -> Any:
    """Calculate with two values by one of SUMS or PRODUCTS.

    Raises:
        EvaluationError: the values cannot be calculated with, the result is too large, or it takes more work than is left.
    """
    work.spend()
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return _of_numbers(sign, left, right)
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > MAX_CHARACTERS:
            raise EvaluationError(f"+ would make more than {MAX_CHARACTERS} characters")
        work.spend_on(joined := left + right)
        return joined
    if sign == "+" and isinstance(left, LISTS) and isinstance(right, LISTS):
        work.spend(len(left) + len(right))
        return [*left, *right]
    raise EvaluationError(f"{kind(left)} {sign} {kind(right)} is not supported", _way_out(left, right))


def negated(value: Any, work: EvaluationBudget) -> Any:
    """Return the negative of a number; raises EvaluationError for anything else."""
    work.spend()
    if isinstance(value, _NUMBERS):
        return -value
    raise EvaluationError(f"-{kind(value)} is not supported", _way_out(value))


def _of_numbers(sign: str, left: Any, right: Any) -> Any:
    bits = [each.bit_length() for each in (left, right) if isinstance(each, int)]
    if (sum(bits) if sign == "*" else max(bits, default=0)) > MAX_BITS:
        raise EvaluationError(f"{sign} would make a number of more than {MAX_BITS} bits")
    try:
        result = _OPERATIONS[sign](left, right)
    except ZeroDivisionError:
        raise EvaluationError("division by zero", "compare with 0 first") from None
    except (TypeError, ArithmeticError):
        raise EvaluationError(f"{kind(left)} {sign} {kind(right)} is not supported here", "do this in a step") from None
    if not isinstance(result, int) and not math.isfinite(result):  # a large int does not even fit into a float
        raise EvaluationError(f"the result of {sign} is not a finite number")
    return result


def _way_out(*values: Any) -> str:
    if any(each is None for each in values):
        return "give a default for null: (… | default(0))"
    return "arithmetic takes numbers; + also joins two texts or two lists"
