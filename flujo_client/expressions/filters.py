"""What a tag of a template may pass its value through: `{{ context.tags | join(', ') | upper }}`. Pure.

In: a value, and the arguments. Out: a value, or a `Fault`. A filter stands after a whole expression: `a or b | upper` is `(a or b) | upper`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flujo_client.expressions.nodes import placed
from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, Missing, fields_of, kind

if TYPE_CHECKING:
    from flujo_client.expressions.nodes import EvaluationScope, ExpressionNode

MAX_DEPTH = 100
"""How deep a value may be nested that is written as text."""
MAX_CHARACTERS = 10_000_000
"""The longest text that `join` makes."""


def as_text(value: Any, work: EvaluationBudget) -> str:
    """Write a value as it stands in a rendered template: a text as it is, null as nothing, all else as JSON.

    It is the same in every process: a set is written in the order of its members' texts.
    """
    data = _plain(value, work)
    if isinstance(data, str):
        return data
    return "" if data is None else _json(data)


def as_json(value: Any, work: EvaluationBudget) -> str:
    """Write a value as JSON, on one line, without escapes for letters that are not ASCII."""
    return _json(_plain(value, work))


def _json(data: Any) -> str:
    try:
        return json.dumps(data, ensure_ascii=False)
    except ValueError:
        raise EvaluationError("a number with more than 4 300 digits cannot be written") from None


def _plain(value: Any, work: EvaluationBudget, depth: int = 0) -> Any:
    """Make a value what JSON knows. Fields that their model excludes are left out."""
    work.spend_on(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth == MAX_DEPTH:
        raise EvaluationError(f"nested deeper than {MAX_DEPTH}", "write a part of it")
    if isinstance(value, LISTS):
        return [_plain(each, work, depth + 1) for each in value]
    if isinstance(value, AbstractSet):
        return sorted((_plain(each, work, depth + 1) for each in value), key=_json)
    fields = fields_of(value)
    if fields is None:
        return _leaf(value)
    hidden = _excluded(value)
    return {as_text(key, work): _plain(fields[key], work, depth + 1) for key in fields if key not in hidden}


def _excluded(value: Any) -> AbstractSet[str]:
    if not isinstance(value, BaseModel):
        return frozenset()
    return {name for name, field in type(value).model_fields.items() if field.exclude}


def _leaf(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError):
        raise EvaluationError(f"{kind(value)} cannot be written as text") from None


def _upper(value: Any, work: EvaluationBudget) -> str:
    return as_text(value, work).upper()


def _lower(value: Any, work: EvaluationBudget) -> str:
    return as_text(value, work).lower()


def _length(value: Any, work: EvaluationBudget) -> int:
    work.spend()
    if isinstance(value, (str, *LISTS, AbstractSet, Mapping)):
        return len(value)
    raise EvaluationError(f"{kind(value)} has no length", "texts, lists and mappings have")


def _join(value: Any, work: EvaluationBudget, between: Any = "") -> str:
    if not isinstance(value, LISTS):
        raise EvaluationError(f"join takes a list, not {kind(value)}")
    if not isinstance(between, str):
        raise EvaluationError(f"join puts a text between, not {kind(between)}")
    parts = [as_text(each, work) for each in value]
    if sum(map(len, parts)) + len(between) * len(parts) > MAX_CHARACTERS:
        raise EvaluationError(f"join would make more than {MAX_CHARACTERS} characters")
    made = between.join(parts)
    work.spend_on(made)
    return made


_FILTERS: dict[str, Callable[..., Any]] = {
    "upper": _upper,
    "lower": _lower,
    "length": _length,
    "tojson": as_json,
    "join": _join,
}
FILTERS = {"upper": (0, 0), "lower": (0, 0), "default": (1, 1), "length": (0, 0), "tojson": (0, 0), "join": (0, 1)}
"""The filters, with the fewest and the most arguments."""


@dataclass(frozen=True, slots=True)
class Filtered:
    of: ExpressionNode
    filter: str
    arguments: tuple[ExpressionNode, ...]
    at: int

    def value(self, scope: EvaluationScope) -> Any:
        if self.filter == "default":
            return self._or_default(scope)
        value = self.of.value(scope)
        arguments = [each.value(scope) for each in self.arguments]
        try:
            return _FILTERS[self.filter](value, scope.work, *arguments)
        except EvaluationError as wrong:
            raise placed(wrong, self.at) from None

    def _or_default(self, scope: EvaluationScope) -> Any:
        try:
            value = self.of.value(scope)
        except Missing:
            value = None
        return self.arguments[0].value(scope) if value is None else value
