"""What a read expression is made of, and how its values compare. Pure.

In: a `Scope`. Out: a value, or a `Fault` that knows its place. Nodes are frozen and hold no state: one expression serves every thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from flujo_client.expressions.values import (
    LISTS,
    EvaluationBudget,
    EvaluationError,
    Missing,
    bare,
    called,
    fields_of,
    has,
    kind,
    read,
)

_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SIGNS = ("==", "!=", *_ORDERS, "in", "not in")


def compared(sign: str, left: Any, right: Any, work: EvaluationBudget) -> bool:
    """Compare two values by one of the SIGNS, as Python does, with four differences.

    Lists and tuples are alike; an enumeration's member is its value; models are equal to models of their own class with equal
    fields; and only values that have one order everywhere are ordered.

    Raises:
        Fault: for values that have no order, a holder that holds nothing, or more work than is left.
    """
    if sign in {"==", "!="}:
        return _same(left, right, work) == (sign == "==")
    if sign in {"in", "not in"}:
        return _holds(right, left, work) == (sign == "in")
    return _ordered(sign, left, right, work)


def _same(left: Any, right: Any, work: EvaluationBudget) -> bool:
    """Without recursion: a value that holds itself runs out of steps, not of stack."""
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
            if not _alike(one, other) or len(fields) != len(others):
                return False
            work.spend(len(fields))
            if fields.keys() != others.keys():
                return False
            pairs.extend((fields[key], others[key]) for key in fields)
        elif not _equal(one, other, work):
            return False
    return True


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) or (isinstance(one, Mapping) and isinstance(other, Mapping))


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
            return bool(_ORDERS[sign](left, right))
    except (TypeError, ValueError, ArithmeticError):
        pass
    raise EvaluationError(
        f"{kind(left)} {sign} {kind(right)} has no answer", "compare numbers with numbers, and texts with texts"
    )


def _holds(holder: Any, item: Any, work: EvaluationBudget) -> bool:
    if isinstance(holder, str):
        if not isinstance(item, str):
            raise EvaluationError(f"a text holds only texts, not {kind(item)}")
        work.spend_on(holder)
        return item in holder
    if isinstance(holder, (*LISTS, AbstractSet)):
        return any(_same(each, item, work) for each in holder)
    fields = fields_of(holder)
    if fields is None:
        raise EvaluationError(
            f"{kind(holder)} holds nothing to look for", "`in` looks in texts, lists, mappings and models"
        )
    return has(fields, item)


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """What an evaluation reads, what it may still do, and whether `or` goes on from what is missing, as it does in templates."""

    names: Mapping[str, Any]
    work: EvaluationBudget = field(default_factory=EvaluationBudget)
    or_covers_missing: bool = False


class ExpressionNode(Protocol):
    def value(self, scope: EvaluationScope, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Literal:
    of: Any

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        return self.of


@dataclass(frozen=True, slots=True)
class ListNode:
    items: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        return [item.value(scope) for item in self.items]


@dataclass(frozen=True, slots=True)
class NameNode:
    """A root: what the caller gives under a name."""

    name: str
    written: str
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        if self.name in scope.names:
            return bare(scope.names[self.name])
        raise placed(Missing(scope.names, self.name, self.written), self.at)


@dataclass(frozen=True, slots=True)
class PartNode:
    """`of.key` or `of[key]`. `written` is the whole, from the root on."""

    of: ExpressionNode
    key: ExpressionNode
    written: str
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        holder, key = self.of.value(scope), self.key.value(scope)
        try:
            return read(holder, key, self.written)
        except Missing as missing:
            raise placed(missing, self.at) from None


@dataclass(frozen=True, slots=True)
class Call:
    of: ExpressionNode
    method: str
    arguments: tuple[ExpressionNode, ...]
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        holder = self.of.value(scope)
        arguments = [each.value(scope) for each in self.arguments]
        try:
            return called(self.method, holder, arguments, scope.work)
        except EvaluationError as wrong:
            raise placed(wrong, self.at) from None


@dataclass(frozen=True, slots=True)
class Not:
    of: ExpressionNode

    def value(self, scope: EvaluationScope) -> Any:
        return not self.of.value(scope)


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        found = None
        for part in self.parts:
            if not (found := part.value(scope)):
                break
        return found


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        *firsts, last = self.parts
        for part in firsts:
            try:
                if found := part.value(scope):
                    return found
            except Missing:
                if not scope.or_covers_missing:
                    raise
        return last.value(scope)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`first sign second sign third …`: true if each pair is; a later value is not looked at after a pair that is not."""

    first: ExpressionNode
    rest: tuple[tuple[str, int, ExpressionNode], ...]

    def value(self, scope: EvaluationScope) -> Any:
        left = self.first.value(scope)
        for sign, at, node in self.rest:
            right = node.value(scope)
            try:
                if not compared(sign, left, right, scope.work):
                    return False
            except EvaluationError as wrong:
                raise placed(wrong, at) from None
            left = right
        return True


def placed(fault: EvaluationError, at: int) -> EvaluationError:
    """Say where a fault happened, unless that is known more closely."""
    if fault.at is None:
        fault.at = at
    return fault
