"""Serializers that users register for their own classes.

A registration is also the permission to rebuild: a registered class needs no resolver, since the reader has to register its decoder. Plain
JSON types cannot be overridden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_serializers: dict[type, Callable[[Any], Any]] = {}
_deserializers: dict[str, Callable[[Any], Any]] = {}


def register_custom_serializer(cls: type[T], func: Callable[[T], Any]) -> None:
    """Serialize instances of `cls`, and of subclasses without their own serializer, as what `func` returns, a serializable value."""
    _serializers[cls] = func


def register_custom_deserializer(cls: type[T], func: Callable[[Any], T]) -> None:
    """Rebuild instances of `cls` with `func`, which gets what the serializer returned."""
    _deserializers[name_of(cls)] = func


def serializer_for(kind: type) -> tuple[str, Callable[[Any], Any]] | None:
    """Find the nearest registered ancestor of `kind`: its name on the wire and its serializer."""
    if _serializers:
        for ancestor in kind.__mro__:
            if func := _serializers.get(ancestor):
                return name_of(ancestor), func
    return None


def deserializer_for(name: str) -> Callable[[Any], Any] | None:
    """Find the deserializer for a name on the wire."""
    return _deserializers.get(name)


def name_of(cls: type) -> str:
    """Write a class's name as it is on the wire."""
    return f"{cls.__module__}:{cls.__qualname__}"
