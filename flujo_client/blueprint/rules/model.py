"""The fields of a context, as far as its model shows them before a run. Pure, but for the import of the model.

In: what a document says under `context_model`; out: `Fields`, or None for no context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from flujo_client.contract.context import PipelineContext
from flujo_client.errors import FlujoError
from flujo_client.pipeline.reference import load


@dataclass(frozen=True)
class Fields:
    """The possible fields of a context."""

    called: str = ""
    """Its model's name."""
    types: Mapping[str, str | None] = field(default_factory=dict)
    """The JSON types of its fields, by name; None if it is not a single type."""
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
    types = {name: _type(described.get(name, {})) for name in model.model_fields}
    return Fields(model.__name__, types, model.model_config.get("extra") == "allow")


def _type(schema: Any) -> str | None:
    found = schema.get("type") if isinstance(schema, dict) else None
    return found if isinstance(found, str) else None
