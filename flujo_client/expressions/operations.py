"""The comparisons and the arithmetic of expressions. Pure.

As in Python, with five differences: lists and tuples are alike, an enumeration's member is its value, models are equal to models of the same
class with equal fields, only values that have one order everywhere are ordered, and a calculated number is finite and has at most `MAX_BITS` bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any, Final

from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, bare, fields_of, has, kind

ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SIGNS = ("==", "!=", *ORDERS, "in", "not in")
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


def compared(sign: str, left: Any, right: Any, work: EvaluationBudget) -> bool:
    """Compare two values by one of the SIGNS. Raises EvaluationError."""
    if sign in {"==", "!="}:
        return _same(left, right, work) == (sign == "==")
    if sign in {"in", "not in"}:
        return _holds(right, left, work) == (sign == "in")
    return _ordered(sign, left, right, work)


def _same(left: Any, right: Any, work: EvaluationBudget) -> bool:
    """Compare without recursion: a value that holds itself runs out of steps, not of stack."""
    pairs = [(left, right)]
    while pairs:
        one, other = map(bare, pairs.pop())
        if isinstance(one, LISTS) and isinstance(other, LISTS):
            work.spend()
            if len(one) != len(other):
                return False
            work.spend(len(one))
            pairs.extend(zip(one, other, strict=True))
        elif (fields := fields_of(one)) is not None and (others := fields_of(other)) is not None:
            work.spend()
            are_alike = type(one) is type(other) or (isinstance(one, Mapping) and isinstance(other, Mapping))
            if not are_alike or len(fields) != len(others):
                return False
            work.spend(len(fields))
            if fields.keys() != others.keys():
                return False
            pairs.extend((fields[key], others[key]) for key in fields)
        elif not _equal(one, other, work):
            return False
    return True


def _equal(one: Any, other: Any, work: EvaluationBudget) -> bool:
    work.spend_on(one)
    try:
        return bool(one == other)
    except (TypeError, ValueError, ArithmeticError) as wrong:
        raise EvaluationError(f"{kind(one)} and {kind(other)} cannot be compared") from wrong


def _ordered(sign: str, left: Any, right: Any, work: EvaluationBudget) -> bool:
    work.spend_on(left)
    try:
        if not any(isinstance(each, (*LISTS, AbstractSet, Mapping)) for each in (left, right)):
            return bool(ORDERS[sign](left, right))
    except (TypeError, ValueError, ArithmeticError):
        pass
    message = f"{kind(left)} {sign} {kind(right)} is not supported"
    raise EvaluationError(message, "compare numbers with numbers, and texts with texts")


def _holds(holder: Any, item: Any, work: EvaluationBudget) -> bool:
    if isinstance(holder, str):
        if not isinstance(item, str):
            raise EvaluationError(f"a text can contain only texts, not {kind(item)}")
        work.spend_on(holder)
        return item in holder
    if isinstance(holder, (*LISTS, AbstractSet)):
        return any(_same(each, item, work) for each in holder)
    if (fields := fields_of(holder)) is not None:
        return has(fields, item)
    way_out = "`in` searches texts, lists, mappings and models"
    if holder is None:
        way_out = "give a default for null: in (… | default([]))"
    raise EvaluationError(f"{kind(holder)} cannot be searched", way_out)


def calculated(sign: str, left: Any, right: Any, work: EvaluationBudget) -> Any:
    """Calculate with two values by one of SUMS or PRODUCTS. Raises EvaluationError."""
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
