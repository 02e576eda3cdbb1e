"""The filters of expressions and templates: `context.tags | length > 2`, `{{ context.tags | join(', ') | upper }}`. Values are written as text. Pure.

A filter takes the value before it and binds more closely than any operator but a minus sign: `a or b | upper` is `a or (b | upper)`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flujo_client.expressions.operations import MAX_CHARACTERS
from flujo_client.expressions.values import LENGTHS, LISTS, EvaluationBudget, EvaluationError, fields_of, kind

MAX_DEPTH = 100
"""The maximum nesting of a value that is written as text."""


def as_text(value: Any, work: EvaluationBudget) -> str:
    """Write a value as it is in a rendered template."""
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
        raise EvaluationError(f"nested deeper than {MAX_DEPTH}", "write only a part of it")
    if isinstance(value, LISTS):
        return [_plain(each, work, depth + 1) for each in value]
    if isinstance(value, AbstractSet):
        return sorted((_plain(each, work, depth + 1) for each in value), key=_json)
    fields = fields_of(value)
    if fields is None:
        return _leaf(value)
    declared = type(value).model_fields if isinstance(value, BaseModel) else {}
    hidden = {name for name, field in declared.items() if field.exclude}
    return {as_text(key, work): _plain(fields[key], work, depth + 1) for key in fields if key not in hidden}


def _leaf(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError):
        raise EvaluationError(f"{kind(value)} cannot be written as text") from None


def _length(value: Any, work: EvaluationBudget) -> int:
    work.spend()
    if isinstance(value, (str, *LISTS, AbstractSet)):
        return len(value)
    if (fields := fields_of(value)) is not None:
        return len(fields)
    if value is None:
        raise EvaluationError("null has no length", "give a default for null: … | default([]) | length")
    raise EvaluationError(f"{kind(value)} has no length", "texts, lists, mappings and models have a length")


def _join(value: Any, work: EvaluationBudget, between: Any = "") -> str:
    if not isinstance(value, LISTS):
        raise EvaluationError(f"join takes a list, not {kind(value)}")
    if not isinstance(between, str):
        raise EvaluationError(f"the separator of join must be a text, not {kind(between)}")
    parts = [as_text(each, work) for each in value]
    if sum(map(len, parts)) + len(between) * len(parts) > MAX_CHARACTERS:
        raise EvaluationError(f"join would make more than {MAX_CHARACTERS} characters")
    made = between.join(parts)
    work.spend_on(made)
    return made


APPLY: dict[str, Callable[..., Any]] = {
    "upper": lambda value, work: as_text(value, work).upper(),
    "lower": lambda value, work: as_text(value, work).lower(),
    "length": _length,
    "tojson": as_json,
    "join": _join,
}
FILTERS = {"upper": (0, 0), "lower": (0, 0), "default": (1, 2), "length": (0, 0), "tojson": (0, 0), "join": (0, 1)}
"""The filters, with the fewest and the most arguments."""

INSTEAD = {
    **dict.fromkeys(LENGTHS, "write | length"),
    "d": "write | default(…)",
    "trim": "write .strip() after the value",
    "first": "write [0] after the list",
    "last": "write [-1] after the list",
    "json": "write | tojson",
    "string": "write it in a template, or | tojson",
}
"""The replacements of filters of other languages."""
