"""The fields that a context model has, as plain data: what contexts are compared by, and what is on record of them as code."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticUndefined

from flujo_client.contract.code import CONTEXT_FIELD
from flujo_client.pipeline.identity import whole
from flujo_client.redact import preview, redact_tree
from flujo_client.serial import digest, dumps
from flujo_worker.agents.parts import Part
from flujo_worker.domain.context_change import REQUIRED, SCHEMA, TYPE
from flujo_worker.runtime.source import DIGEST_LENGTH

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")

_LONGEST: Final = 120
_LONGEST_DEFAULT: Final = 40


def _once_per_model(make: Callable[[type[BaseModel]], T]) -> Callable[[type[BaseModel]], T]:
    """Store a function's results while their models live: a schema costs milliseconds, and each step asks."""
    known: WeakKeyDictionary[type[BaseModel], T] = WeakKeyDictionary()

    @wraps(make)
    def stored(model: type[BaseModel]) -> T:
        if model not in known:
            known[model] = make(model)
        return known[model]

    return stored


@_once_per_model
def fields_of_model(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """Return what is known of each field: its type, the digest of its schema, and whether it has no default."""
    return {
        name: {
            TYPE: _type_name(field.annotation),
            SCHEMA: _schema_digest(field.rebuild_annotation()),
            REQUIRED: field.is_required(),
        }
        for name, field in model.model_fields.items()
    }


@_once_per_model
def context_parts(model: type[BaseModel]) -> tuple[Part, ...]:
    """Return each field as a part of what a step is performed with: its type, and its default."""
    known = fields_of_model(model)
    return tuple(_part(name, field, known[name]) for name, field in model.model_fields.items())


def _part(name: str, field: FieldInfo, known: dict[str, Any]) -> Part:
    default = _default(field)
    shown = "required" if known[REQUIRED] else f"default {_shown(name, default)}"
    made_of = [known[SCHEMA], known[REQUIRED], default]
    return Part(CONTEXT_FIELD + f"'{name}'", digest(whole(made_of))[:DIGEST_LENGTH], f"{known[TYPE]}, {shown}")


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return f"of {getattr(field.default_factory, '__qualname__', type(field.default_factory).__qualname__)}()"
    return None if field.default is PydanticUndefined else whole(field.default)


def _shown(name: str, default: Any) -> str:
    shown = redact_tree(default, name)
    return preview(dumps(shown).decode(), _LONGEST_DEFAULT)


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
