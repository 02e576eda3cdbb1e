"""The facts before a run: the fields of a context by its model, and the paths that texts read. Pure, but for the import of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from flujo_client.blueprint.changes import ItemsShape, context_path
from flujo_client.blueprint.keys import WhenShape
from flujo_client.blueprint.shapes import FieldType
from flujo_client.blueprint.value_types import EXPRESSION, LIMIT_NAME, TEMPLATE, Formula, Templates
from flujo_client.contract.context import PipelineContext
from flujo_client.errors import BlueprintTextError, FlujoError
from flujo_client.expressions.templates import Expression, Template
from flujo_client.pipeline.compiled_text import expression_of, template_of
from flujo_client.pipeline.reference import is_reference, load


@dataclass(frozen=True)
class Fields:
    called: str = ""
    """Its model's name."""
    types: Mapping[str, str | None] = field(default_factory=dict)
    """The JSON types of its fields, by name; None for a field without a single type."""
    is_open: bool = True
    """Whether it may have other fields too."""


UNKNOWN: Final = Fields()
"""The fields of a model that is not known here."""


def fields_of(document: Mapping[Any, Any], allowed: Sequence[str]) -> Fields | None:
    """Find the fields of a document's context."""
    if "context_model" not in document:
        return _read(PipelineContext)
    named = document["context_model"]
    if not isinstance(named, str):
        return None if named is None else UNKNOWN
    try:
        found = load(named, allowed=allowed, what="context model")
    except FlujoError:
        return UNKNOWN
    return _read(found) if isinstance(found, type) and issubclass(found, BaseModel) else UNKNOWN


@lru_cache(maxsize=256)
def _read(model: type[BaseModel]) -> Fields:
    try:
        described: Any = model.model_json_schema().get("properties", {})
    except (PydanticUserError, TypeError, ValueError):
        described = {}
    types = {name: type_of(described.get(name, {})) for name in model.model_fields}
    return Fields(model.__name__, types, model.model_config.get("extra") == "allow")


def type_of(schema: Any) -> str | None:
    """Return the type that a schema names, if it names a single type."""
    found = schema.get("type") if isinstance(schema, Mapping) else None
    return found if isinstance(found, str) else None


Reads: TypeAlias = tuple[frozenset[tuple[str, ...]], frozenset[str]]
"""The names that a text reads, and the filters that it passes values through."""
_NOTHING: Final[Reads] = frozenset(), frozenset()


def is_read(shape: FieldType) -> bool:
    """Return whether texts of a shape read the context, steps and their outputs."""
    return shape in (EXPRESSION, TEMPLATE, LIMIT_NAME) or isinstance(shape, Templates | WhenShape | ItemsShape)


def reads_of(shape: FieldType, text: str) -> Reads | None:
    """Return what a text of such a shape reads, nothing if it cannot be read; None if it is a reference instead."""
    if isinstance(shape, ItemsShape):
        return _items_read(text)
    if (shape == EXPRESSION or isinstance(shape, WhenShape)) and is_reference(text):
        return None
    read: Callable[[str], Expression | Template] = expression_of if isinstance(shape, WhenShape) else template_of
    try:
        found = shape.read(text) if isinstance(shape, Formula) else read(text)
    except BlueprintTextError:
        return _NOTHING
    return found.names, found.filters


def _items_read(text: str) -> Reads:
    path = context_path(text)
    if path is None:
        return _NOTHING
    first, *rest = path.split(".")
    names = ("steps", rest[0], "output", *rest[1:]) if first == "step_outputs" else ("context", first, *rest)
    return frozenset([names]), frozenset()
