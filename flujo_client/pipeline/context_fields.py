"""The fields that a context model has, as plain data that is the same in every process: what contexts are compared by.

A plan's fingerprint covers only the model's name, so clients and workers record its fields. In: a model. Out: its fields, with their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from flujo_client.plan.identity import whole
from flujo_client.serial import digest

Fields: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The fields of a model by name, each with what is known of it."""
TYPE, SCHEMA, REQUIRED = "type", "schema", "required"
"""The facts about a field: its type for people, the digest of its schema, and whether it has no default."""
T = TypeVar("T")
_LONGEST: Final = 120


def once_per_model(make: Callable[[type[BaseModel]], T]) -> Callable[[type[BaseModel]], T]:
    """Store a function's results while their models live: a schema costs milliseconds, and each step asks."""
    known: WeakKeyDictionary[type[BaseModel], T] = WeakKeyDictionary()

    @wraps(make)
    def stored(model: type[BaseModel]) -> T:
        if model not in known:
            known[model] = make(model)
        return known[model]

    return stored


@once_per_model
def fields_of_model(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return the facts about each field: its type, the digest of its schema, and whether it has no default."""
    return {
        name: {
            TYPE: _type_name(field.annotation),
            SCHEMA: _schema_digest(field.rebuild_annotation()),
            REQUIRED: field.is_required(),
        }
        for name, field in model.model_fields.items()
    }


def fields_digest(fields: Fields) -> str:
    """Return what the record of a model's fields is called."""
    return digest(whole(fields))


def _type_name(annotation: Any) -> str:
    return str(annotation.__qualname__ if isinstance(annotation, type) else annotation).replace("typing.", "")[
        :_LONGEST
    ]


def _schema_digest(annotation: Any) -> str:
    """Digest what a field takes, with the models in it; of a type without a schema, its name."""
    try:
        return digest(whole(TypeAdapter(annotation).json_schema()))
    except (PydanticUserError, TypeError, ValueError):
        return _type_name(annotation)
