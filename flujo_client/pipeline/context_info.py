"""The facts about a context before a run begins: whether there is one at a place, and the fields of its model, which fingerprints leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from flujo_client.plan.identity import whole
from flujo_client.serial import digest


class ContextInfo(NamedTuple):
    """The context of steps at a place."""

    has_context: bool
    model: type[BaseModel] | None = None
    """The model of the context, if known."""
    is_cached: bool = False
    """Whether steps here may be skipped, because their result is cached."""

    def lacks(self, option: str, path: str | None = None, *, declared: bool = False) -> Iterator[str]:
        """Find what an option misses here: a context, or the field that its path begins with, which may have to be a `declared` one."""
        if not self.has_context:
            yield f"{option} needs a context; give one to the run, or set the pipeline's context_model"
        elif path is not None and self.model is not None:
            may_have = not declared and self.model.model_config.get("extra") == "allow"
            if not may_have and path.partition(".")[0] not in self.model.model_fields:
                yield f"{option} '{path}' is not a field of {self.model.__name__}"


def is_dotted(path: Any) -> bool:
    """Return whether it is a dotted path of names."""
    return isinstance(path, str) and all(part.isidentifier() for part in path.split("."))


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
    name = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
    return name.replace("typing.", "")[:_LONGEST]


def _schema_digest(annotation: Any) -> str:
    """Digest what a field takes, with the models in it; of a type without a schema, its name."""
    try:
        return digest(whole(TypeAdapter(annotation).json_schema()))
    except (PydanticUserError, TypeError, ValueError):
        return _type_name(annotation)
