"""Whether values of a type can be serialized, as far as its annotations tell, before there is one. Pure.

What cannot be known is accepted: type variables, abstract classes, annotations that name nothing, a subclass that may be serializable. In: a
type; out: None, or the error that `encode` would raise for its values, with the place inside the type.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Container
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from typing_extensions import is_typeddict

from flujo_client.errors import SerializationError
from flujo_client.serial.custom import serializer_for
from flujo_client.serial.library_types import refuse_secret
from flujo_client.serial.rule import EncodingRefused
from flujo_client.serial.rules import rule_of

_OTHERS: Final = ("flujo_client", "flujo_worker", "pydantic_ai", "typing", "typing_extensions")
"""Packages whose classes stand for other values, such as an agent's result for its output."""
_PLAIN: Final = (dict, list, bool, type(None))


def refused_type(kind: Any) -> SerializationError | None:
    """Return why no value of the type of an output can be serialized; None if some values can, or if that is not known."""
    try:
        _look(kind, frozenset())
    except EncodingRefused as refused:
        return refused.as_error("output")
    return None


def _look(kind: Any, above: frozenset[Any]) -> None:
    """Raise EncodingRefused for a type of which no value can be serialized."""
    kind = getattr(kind, "__value__", getattr(kind, "__supertype__", kind))  # of a named type
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        _look(args[0], above)
    elif origin in (Union, UnionType):
        _look_at_any(args, above)
    elif isinstance(origin or kind, type):
        _look_at_class(origin or kind, args, above)


def _look_at_any(members: Collection[Any], above: frozenset[Any]) -> None:
    """Look at types of which one is enough."""
    refused: EncodingRefused | None = None
    for each in members:
        try:
            _look(each, above)
        except EncodingRefused as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def _look_at_class(cls: type, args: Collection[Any], above: frozenset[Any]) -> None:
    is_known = cls.__module__.partition(".")[0] not in _OTHERS
    if cls in above or cls is object or not is_known or serializer_for(cls):
        return
    refuse_secret(cls)
    if not (cls in _PLAIN or is_typeddict(cls) or _may_be_derived(cls)):
        rule_of(cls)
    inside = above | {cls}
    parts = [*((f".{name}", each) for name, each in _fields(cls).items())]
    parts += [("[…]", each) for each in args if issubclass(cls, Container)]
    for step, part in parts:
        try:
            _look(part, inside)
        except EncodingRefused as refused:
            refused.past(cls, step)
            raise


def _may_be_derived(cls: type) -> bool:
    """Return whether values may be of a derived class, which may be serializable."""
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False) or bool(type.__subclasses__(cls))


def _fields(cls: type) -> dict[str, Any]:
    """Return the fields that every value of a class has, with their types."""
    if issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.__pydantic_fields__.items()}
    if dataclasses.is_dataclass(cls):
        names: Collection[str] = [each.name for each in dataclasses.fields(cls)]
    else:
        names = getattr(cls, "__required_keys__" if is_typeddict(cls) else "_fields", ())
    try:
        hints = get_type_hints(cls, include_extras=True) if names else {}
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return {}
    return {name: hints[name] for name in names if name in hints}
