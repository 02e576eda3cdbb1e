"""Show steps and pipelines in a console: only the options that their author set."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from pydantic import BaseModel


class BriefRepr:
    """Show the fields of a dataclass that differ from their defaults, and functions by their names."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = BriefRepr.__repr__  # type: ignore[method-assign]  # `dataclass` writes one only where a class has none

    def __repr__(self) -> str:
        shown: list[Field[Any]] = [each for each in fields(self) if each.repr]  # type: ignore[arg-type]  # a dataclass
        values = ((each, getattr(self, each.name)) for each in shown)
        given = [f"{each.name}={_text(value)}" for each, value in values if not _is_default(each, value)]
        return f"{type(self).__name__}({', '.join(given)})"


def _is_default(each: Field[Any], value: Any) -> bool:
    factory = each.default_factory
    default = each.default if factory is MISSING else factory()
    return value is default or (type(value) is type(default) and bool(value == default))


def _text(value: Any) -> str:
    if isinstance(value, BaseModel):
        given = (
            f"{name}={getattr(value, name)!r}" for name in type(value).model_fields if name in value.model_fields_set
        )
        return f"{type(value).__name__}({', '.join(given)})"
    return str(getattr(value, "__name__", repr(value))) if callable(value) else repr(value)
