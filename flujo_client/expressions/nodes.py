"""The nodes of a parsed expression. Pure. They are frozen and hold no state: one expression serves every thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flujo_client.expressions.operations import ORDERS, calculated, compared
from flujo_client.expressions.values import EvaluationBudget, EvaluationError, Missing, bare, read


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The data of an evaluation, and its remaining budget.

    `on_missing` is called with a missing name where it counts as null: in `not`, `==`, `!=`, `in` and `not in`. None makes it an error
    there too, as in all other places that `or` and `default` do not cover.
    """

    names: Mapping[str, Any]
    work: EvaluationBudget = field(default_factory=EvaluationBudget)
    on_missing: Callable[[str], object] | None = None

    def value_or(self, node: ExpressionNode, otherwise: Any) -> Any:
        """Return the value of a node, or what replaces it if it is missing and may be."""
        try:
            return node.value(self)
        except Missing as missing:
            if self.on_missing is None:
                raise
            self.on_missing(missing.name)
            return otherwise


class ExpressionNode(Protocol):
    def value(self, scope: EvaluationScope, /) -> Any: ...


class Literal(NamedTuple):
    of: Any

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        return self.of


class ListNode(NamedTuple):
    items: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        return [item.value(scope) for item in self.items]


class NameNode(NamedTuple):
    """A root: what the caller gives under a name."""

    name: str
    written: str
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        scope.work.spend()
        if self.name in scope.names:
            return bare(scope.names[self.name])
        raise placed(Missing(scope.names, self.name, self.written), self.at)


class PartNode(NamedTuple):
    """`of.key` or `of[key]`. `written` is the whole, from the root on."""

    of: ExpressionNode
    key: ExpressionNode
    written: str
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        holder, key = self.of.value(scope), self.key.value(scope)
        return at(self.at, read, holder, key, self.written)


class Applied(NamedTuple):
    """A method, a filter or a minus sign, applied to a value and its arguments."""

    act: Callable[..., Any]
    """A function of the value, the budget and the arguments."""
    of: ExpressionNode
    arguments: tuple[ExpressionNode, ...]
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        value, *arguments = [each.value(scope) for each in (self.of, *self.arguments)]
        return at(self.at, self.act, value, scope.work, *arguments)


class Default(NamedTuple):
    """`of | default(arguments)`: the first argument for what is missing or null; if the second is true, for anything false."""

    of: ExpressionNode
    arguments: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        otherwise, *any_false = self.arguments
        try:
            value = self.of.value(scope)
        except Missing:
            value = None
        is_kept = value if any_false and any_false[0].value(scope) else value is not None
        return value if is_kept else otherwise.value(scope)


class Not(NamedTuple):
    of: ExpressionNode

    def value(self, scope: EvaluationScope) -> Any:
        return not scope.value_or(self.of, None)


class And(NamedTuple):
    parts: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        found = None
        for part in self.parts:
            if not (found := part.value(scope)):
                break
        return found


class Or(NamedTuple):
    """The first part that is true, else the last; a part that is missing is not true."""

    parts: tuple[ExpressionNode, ...]

    def value(self, scope: EvaluationScope) -> Any:
        *firsts, last = self.parts
        for part in firsts:
            try:
                if found := part.value(scope):
                    return found
            except Missing:
                continue
        return last.value(scope)


class Comparison(NamedTuple):
    """`first sign second sign third …`: true if each pair is; a later value is not examined after a pair that is not."""

    first: ExpressionNode
    rest: tuple[tuple[str, int, ExpressionNode], ...]

    def value(self, scope: EvaluationScope) -> Any:
        left = _side(scope, self.first, self.rest[0][0], None)
        for sign, place, node in self.rest:
            right = _side(scope, node, sign, () if sign in {"in", "not in"} else None)
            if not at(place, compared, sign, left, right, scope.work):
                return False
            left = right
        return True


def _side(scope: EvaluationScope, node: ExpressionNode, sign: str, otherwise: Any) -> Any:
    return node.value(scope) if sign in ORDERS else scope.value_or(node, otherwise)


class Arithmetic(NamedTuple):
    """`first sign second sign third …`, of signs that bind alike: calculated from the left."""

    first: ExpressionNode
    rest: tuple[tuple[str, int, ExpressionNode], ...]

    def value(self, scope: EvaluationScope) -> Any:
        result = self.first.value(scope)
        for sign, place, node in self.rest:
            result = at(place, calculated, sign, result, node.value(scope), scope.work)
        return result


def at(place: int, act: Callable[..., Any], *arguments: Any) -> Any:
    """Do what happens at a place in the text, so that a fault in it knows that."""
    try:
        return act(*arguments)
    except EvaluationError as fault:
        raise placed(fault, place) from None


def placed(fault: EvaluationError, at: int) -> EvaluationError:
    """Set the position of a fault that has none yet."""
    if fault.at is None:
        fault.at = at
    return fault
