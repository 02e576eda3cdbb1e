"""Which names the expressions, templates and places of a document read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from flujo_client.blueprint.items import ItemsShape, context_path
from flujo_client.blueprint.keys import WhenShape, is_reference
from flujo_client.blueprint.value_types import EXPRESSION, TEMPLATE, Templates
from flujo_client.errors import BlueprintTextError
from flujo_client.pipeline.compiled_text import expression_of, template_of

if TYPE_CHECKING:
    from flujo_client.blueprint.shapes import FieldType

Names: TypeAlias = frozenset[tuple[str, ...]]


def is_read(shape: FieldType) -> bool:
    """Tell whether texts of a shape read the context, steps and their outputs."""
    return shape in (EXPRESSION, TEMPLATE) or isinstance(shape, Templates | WhenShape | ItemsShape)


def names_read(shape: FieldType, text: str) -> Names | None:
    """Return the names that a text of such a shape reads, none if it cannot be read; None if it is a reference instead."""
    if isinstance(shape, ItemsShape):
        return _names_of_items(text)
    is_condition = shape == EXPRESSION or isinstance(shape, WhenShape)
    if is_condition and is_reference(text):
        return None
    try:
        return (expression_of if is_condition else template_of)(text).names
    except BlueprintTextError:
        return frozenset()


def _names_of_items(text: str) -> Names:
    path = context_path(text)
    if path is None:
        return frozenset()
    first, *rest = path.split(".")
    return frozenset(
        [("steps", rest[0], "output", *rest[1:]) if first == "step_outputs" else ("context", first, *rest)]
    )
