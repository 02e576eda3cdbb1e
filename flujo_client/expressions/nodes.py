"""What a read expression is made of. Pure.

In: a `Scope`. Out: a value, or a `Fault` that knows its place. Nodes are frozen and hold no state: one expression serves every thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flujo_client.expressions.comparing import compared
from flujo_client.expressions.values import EvaluationBudget, EvaluationError, Missing, bare, called, read

if TYPE_CHECKING:
    from collections.abc import Mapping


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
