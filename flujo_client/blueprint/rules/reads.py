"""Which names the expressions, templates and places of a document read, and which filters they use. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from flujo_client.blueprint.changes import ItemsShape, context_path
from flujo_client.blueprint.keys import WhenShape
from flujo_client.blueprint.value_types import EXPRESSION, LIMIT_NAME, TEMPLATE, Formula, Templates
from flujo_client.errors import BlueprintTextError
from flujo_client.pipeline.compiled_text import expression_of, template_of
from flujo_client.pipeline.reference import is_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.blueprint.shapes import FieldType
    from flujo_client.expressions.templates import Expression, Template

Names: TypeAlias = frozenset[tuple[str, ...]]


class TextReads(NamedTuple):
    """The names that a text reads, and the filters that it passes values through."""

    names: Names = frozenset()
    filters: frozenset[str] = frozenset()


def is_read(shape: FieldType) -> bool:
    """Return whether texts of a shape read the context, steps and their outputs."""
    return shape in (EXPRESSION, TEMPLATE, LIMIT_NAME) or isinstance(shape, Templates | WhenShape | ItemsShape)


def reads_of(shape: FieldType, text: str) -> TextReads | None:
    """Return what a text of such a shape reads, nothing if it cannot be read; None if it is a reference instead."""
    if isinstance(shape, ItemsShape):
        return TextReads(_names_of_items(text))
    if (shape == EXPRESSION or isinstance(shape, WhenShape)) and is_reference(text):
        return None
    try:
        read = _reader_of(shape)(text)
    except BlueprintTextError:
        return TextReads()
    return TextReads(read.names, read.filters)


def _reader_of(shape: FieldType) -> Callable[[str], Expression | Template]:
    if isinstance(shape, Formula):
        return shape.read
    return expression_of if isinstance(shape, WhenShape) else template_of


def _names_of_items(text: str) -> Names:
    path = context_path(text)
    if path is None:
        return frozenset()
    first, *rest = path.split(".")
    return frozenset(
        [("steps", rest[0], "output", *rest[1:]) if first == "step_outputs" else ("context", first, *rest)]
    )
