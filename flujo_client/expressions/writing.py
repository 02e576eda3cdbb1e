"""Write data as text, for templates. Pure.

In: a value and the `EvaluationBudget` that bounds it. Out: text, the same in every process: a set is written in the order of its members'
texts. A text is written unchanged, null as nothing, everything else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, fields_of, kind

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
