"""Convert any object to plain JSON, for traces and events: untagged, bounded, without exceptions.

From the most to the least specific: primitives, registered classes, Enum, Mock, scalars, agents' responses, models, dataclasses, mappings
and sequences, other objects, placeholder. Types are checked before values are touched; an exception of users' code becomes a placeholder.
Texts are safe for Postgres.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from math import isfinite
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from pydantic import BaseModel, NameEmail

from flujo_client.serial.custom import serializer_for
from flujo_client.serial.library_types import ADDRESSES, URLS
from flujo_client.serial.tree import is_mock, storable_text, type_name

if TYPE_CHECKING:
    from flujo_client.serial.tree import Tree

T = TypeVar("T")

MAX_DEPTH: Final = 64
MAX_NODES: Final = 20_000
_CHARS_PER_NODE: Final = 100
_CUT: Final = "<cut: too large>"
_SAFE_INT: Final = 2**63
_LONGEST_INT: Final = 10_000  # bits; Python refuses to write much longer ones in decimal


def safe_serialize(obj: Any, *, max_nodes: int = MAX_NODES, max_depth: int = MAX_DEPTH) -> Tree:
    """Return a plain tree that shows `obj` to people and programs; it cannot be converted back.

    Every hundred characters of text count as one more of the nodes. Values deeper than `max_depth` become placeholders.
    """
    return _Walk(max_nodes, max_depth).tree(obj, 0)


class _Walk:
    """One walk over one object: what is left of the budget, and which containers it is inside of."""

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        self.left = max_nodes
        self.max_depth = max_depth
        self.inside: set[int] = set()

    def tree(self, obj: Any, depth: int) -> Tree:
        kind = type(obj)
        self.left -= 1
        if self.left < 0:
            return _CUT
        try:
            scalar = self._scalar(obj, kind)
        except Exception:  # noqa: BLE001  # hostile objects raise anything, and a trace must not fail
            return _placeholder(kind)
        return self._nested(obj, kind, depth) if scalar is _NOT_SCALAR else scalar

    def _nested(self, obj: Any, kind: type, depth: int) -> Tree:
        if id(obj) in self.inside:
            return f"<cycle {_name(kind)}>"
        if depth >= self.max_depth:
            return f"<too deep {_name(kind)}>"
        self.inside.add(id(obj))
        try:
            return self._container(obj, kind, depth + 1)
        except Exception:  # noqa: BLE001  # as above
            return _placeholder(kind)
        finally:
            self.inside.discard(id(obj))

    # --- scalars

    def _scalar(self, obj: Any, kind: type) -> Any:
        if obj is None or kind is bool or (kind is int and -_SAFE_INT <= obj < _SAFE_INT):
            return obj
        if kind is str:
            return self._text(obj)
        if kind in _CONTAINERS or serializer_for(kind) or is_mock(kind) or issubclass(kind, Enum):
            return _NOT_SCALAR
        shown = next((show(obj) for family, show in _SCALARS if issubclass(kind, family)), _NOT_SCALAR)
        return self._text(shown) if type(shown) is str else shown

    def _text(self, text: str) -> str:
        room = (self.left + 1) * _CHARS_PER_NODE
        self.left -= len(text) // _CHARS_PER_NODE
        if len(text) > room:
            text = f"{text[:room]}… {_CUT}"
        return storable_text(text)

    # --- containers

    def _container(self, obj: Any, kind: type, depth: int) -> Tree:  # the order is the rule
        if kind is dict:
            return self._mapping(obj.items(), depth)
        if kind in _CONTAINERS:
            return self._sequence(obj, depth)
        if custom := serializer_for(kind):
            return self.tree(custom[1](obj), depth)
        if issubclass(kind, Enum):
            return self.tree(obj.value, depth)
        if is_mock(kind):
            return {"mock": _name(kind)}
        if (members := _members(obj, kind)) is not None:
            return self._mapping(members.items(), depth)
        if issubclass(kind, (Sequence, AbstractSet, ValuesView)):
            return self._sequence(obj, depth)
        attributes = _public(_attribute_names(obj, kind), obj)
        return self._mapping(attributes.items(), depth) if attributes else _placeholder(kind)

    def _mapping(self, items: Iterable[tuple[Any, Any]], depth: int) -> Tree:
        out: dict[str, Tree] = {}
        for key, item in items:
            if self.left <= 0:
                out["…"] = _CUT
                break
            name = self._key(key, depth)  # before the value, which may use up the budget
            out[name] = self.tree(item, depth)
        return out

    def _key(self, key: Any, depth: int) -> str:
        if type(key) is str:
            return self._text(key)
        tree = self.tree(key, depth)
        return tree if isinstance(tree, str) else orjson.dumps(tree).decode()

    def _sequence(self, items: Iterable[Any], depth: int) -> Tree:
        out: list[Tree] = []
        for item in items:
            if self.left <= 0:
                out.append(_CUT)
                break
            out.append(self.tree(item, depth))
        return out


_NOT_SCALAR: Final = object()
_CONTAINERS: Final = frozenset({dict, list, tuple, set, frozenset})


def _number(number: int) -> int | str:
    number = int.__int__(number)
    if -_SAFE_INT <= number < _SAFE_INT:
        return number
    bits = number.bit_length()
    return str(number) if bits <= _LONGEST_INT else f"<int of {bits} bits>"


def _float(number: float) -> float | str:
    number = float.__float__(number)
    return number if isfinite(number) else str(number)


# Things that are written as one text or number, the more specific first.
_SCALARS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, _number),
    (float, _float),
    ((bytes, bytearray, memoryview), lambda data: base64.b64encode(data).decode("ascii")),
    ((dt.date, dt.time), lambda moment: moment.isoformat()),
    ((Decimal, uuid.UUID, PurePath, complex, dt.timedelta, dt.tzinfo, Fraction, *ADDRESSES, *URLS, NameEmail), str),
    (re.Pattern, lambda pattern: str(pattern.pattern)),
    (type, lambda cls: f"<class {_name(cls)}>"),
    ((FunctionType, BuiltinFunctionType, MethodType), lambda func: f"<function {func.__module__}.{func.__qualname__}>"),
    (partial, lambda part: f"<partial of {getattr(part.func, '__qualname__', _name(type(part.func)))}>"),
    (ModuleType, lambda module: f"<module {module.__name__}>"),
)


def _members(obj: Any, kind: type) -> Mapping[Any, Any] | None:
    if response := _response(obj, kind):
        return response
    if issubclass(kind, BaseException):
        return {"type": type_name(kind), "message": str(obj)}
    if issubclass(kind, BaseModel):
        return _dumped(obj, kind)
    if is_dataclass(kind):
        return _public((field.name for field in fields(kind)), obj)
    return obj if issubclass(kind, Mapping) else None


def _response(obj: Any, kind: type) -> dict[str, Any] | None:
    """Recognise an agent's response by its attributes' names; `output` is what pydantic-ai calls the content."""
    names = set(_attribute_names(obj, kind)).union(*(vars(ancestor) for ancestor in kind.__mro__))
    if {"content", "usage", "metadata"} <= names:
        content = obj.content
    elif {"output", "usage"} <= names and not issubclass(kind, BaseModel):
        content = obj.output
    else:
        return None
    usage = obj.usage() if isinstance(obj.usage, MethodType) else obj.usage
    return {"content": content, "usage": usage, "metadata": obj.metadata if "metadata" in names else None}


def _dumped(obj: BaseModel, kind: type[BaseModel]) -> Mapping[str, Any]:
    """Dump a model; cycles and broken serializers inside it leave its fields to be walked one by one."""
    try:
        return obj.model_dump(warnings=False, serialize_as_any=True)
    except Exception:  # noqa: BLE001  # users' serializers raise anything
        return {name: obj.__dict__.get(name) for name, field in kind.model_fields.items() if not field.exclude}


def _attribute_names(obj: Any, kind: type) -> Iterable[str]:
    """Yield the names of an object's attributes, without calling its __getattr__, properties or __dir__."""
    for ancestor in kind.__mro__:
        slots = vars(ancestor).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
    try:
        own = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return
    yield from own if type(own) is dict else ()


def _public(names: Iterable[str], obj: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in names:
        if not name.startswith("_"):
            try:
                out[name] = object.__getattribute__(obj, name)
            except AttributeError:
                continue  # a slot that was never filled
    return out


def _placeholder(kind: type) -> str:
    return f"<{_name(kind)}>"


def _name(kind: type) -> str:
    try:
        return storable_text(type_name(kind))
    except Exception:  # noqa: BLE001  # a metaclass may hide even the name
        return "object"
