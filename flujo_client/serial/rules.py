"""Rules that take values apart which are not plain JSON, and put them together again.

A rule takes a value apart into named entries of simpler values, which are encoded in turn; putting together gets
them back decoded. Rules handle single values: `strict` handles walking, paths, depth and tags.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import pathlib
import uuid
from collections.abc import Awaitable
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from flujo_client.errors import SerializationError
from flujo_client.serial import library_types
from flujo_client.serial.library_types import refuse_secret, zone_apart, zone_together
from flujo_client.serial.resolve import reference
from flujo_client.serial.rule import EncodingRefused, EncodingRule, Entries, simple
from flujo_client.serial.tree import is_mock, type_name

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# --- bytes, numbers, text --------------------------------------------------------------------------------------------


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# --- clocks ----------------------------------------------------------------------------------------------------------


def _clock_apart(value: dt.datetime | dt.time) -> Entries:
    if value.tzinfo is None or value.tzinfo is dt.UTC:
        entries: Entries = {"v": value.isoformat()}
    else:
        entries = {"v": value.replace(tzinfo=None).isoformat(), "z": zone_apart(value.tzinfo)}
    return {**entries, "f": 1} if value.fold else entries


def _clock(cls: type[dt.datetime | dt.time]) -> EncodingRule:
    def together(_: Any, entries: Entries) -> dt.datetime | dt.time:
        value = cls.fromisoformat(entries["v"])
        zone = zone_together(entries.get("z")) or value.tzinfo
        return value.replace(tzinfo=zone, fold=entries.get("f", 0))

    return EncodingRule(cls.__name__, _clock_apart, together)


# --- users' classes --------------------------------------------------------------------------------------------------


def _namedtuple(cls: Any, entries: Entries) -> Any:
    defaults = cls._field_defaults
    sent = entries["v"]
    return tuple.__new__(cls, [sent[name] if name in sent else defaults[name] for name in cls._fields])


def _dataclass(cls: Any, entries: Entries) -> Any:
    sent = entries["v"]
    value = cls.__new__(cls)
    for field in dataclasses.fields(cls):
        # Past __init__ and __post_init__, which could alter the value, and past a frozen class's __setattr__.
        object.__setattr__(value, field.name, sent[field.name] if field.name in sent else _field_default(field))
    return value


def _field_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise ValueError(f"field {field.name!r} was not sent and has no default")
    return field.default


def _model_apart(value: BaseModel) -> Entries:
    declared = type(value).__pydantic_fields__
    fields = {name: item for name, item in value.__dict__.items() if name in declared}
    entries: Entries = {"v": fields}
    if value.model_fields_set != fields.keys():
        entries["s"] = sorted(value.model_fields_set)
    if value.__pydantic_extra__:
        entries["x"] = value.__pydantic_extra__
    return entries


def _model(cls: type[BaseModel], entries: Entries) -> BaseModel:
    sent: Entries = entries["v"]
    if extra := entries.get("x"):  # another version of the class may have treated a field as extra
        sent = {**extra, **sent}
    fields = {
        name: sent[name] if name in sent else _model_default(field, name, sent)
        for name, field in cls.__pydantic_fields__.items()
    }
    unknown = {} if sent.keys() == fields.keys() else {name: item for name, item in sent.items() if name not in fields}
    policy = cls.model_config.get("extra")
    if unknown and policy == "forbid":
        raise ValueError(f"{cls.__qualname__} forbids the fields {sorted(unknown)}")
    kept = unknown if policy == "allow" else {}
    known = {*fields, *kept}
    value = cls.__new__(cls)
    # Pydantic's own door for unpickling: no validator and no post-init can alter what was sent.
    value.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": known.intersection(entries.get("s", (*sent,))),
            "__pydantic_extra__": kept if policy == "allow" else None,
            "__pydantic_private__": _private_defaults(cls, fields),
        }
    )
    return value


def _model_default(field: FieldInfo, name: str, sent: Entries) -> Any:
    default = field.get_default(call_default_factory=True, validated_data=sent)
    if default is PydanticUndefined:
        raise ValueError(f"field {name!r} was not sent and has no default")
    return default


def _private_defaults(cls: type[BaseModel], fields: Entries) -> Entries | None:
    """Return the private attributes' defaults, with which they start on every worker: their values are not sent."""
    if not cls.__private_attributes__:
        return None
    private: Entries = {}
    for name, attribute in cls.__private_attributes__.items():
        if hasattr(attribute, "default_factory_takes_validated_data"):
            default = attribute.get_default(call_default_factory=True, validated_data={**fields, **private})
        else:  # pydantic before 2.13
            default = attribute.get_default()
        if default is not PydanticUndefined:
            private[name] = default
    return private


def _is_dataclass(cls: type) -> bool:
    """Return whether a class is a dataclass, but no container or exception: what those hold in addition to their fields would be lost."""
    return dataclasses.is_dataclass(cls) and not issubclass(
        cls, (str, bytes, int, float, list, tuple, dict, set, frozenset, BaseException)
    )


# --- the table -------------------------------------------------------------------------------------------------------

MAP = "map"
SETS = {set: "set", frozenset: "frozenset"}

_CLASS_RULES = (
    EncodingRule(
        "enum",
        lambda value: {"v": value.value},
        lambda cls, entries: cls(entries["v"]),
        lambda cls: issubclass(cls, Enum),
    ),
    EncodingRule("model", _model_apart, _model, lambda cls: issubclass(cls, BaseModel)),
    EncodingRule(
        "namedtuple",
        lambda value: {"v": dict(zip(value._fields, value, strict=True))},
        _namedtuple,
        lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults"),
    ),
    EncodingRule(
        "dataclass",
        lambda value: {
            "v": {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
        },
        _dataclass,
        _is_dataclass,
    ),
    *library_types.FAMILIES,
)

_EXACT: dict[type, EncodingRule] = {
    str: simple(
        "text",
        lambda text: _base64(text.encode("utf-8", "surrogatepass")),
        lambda text: _unbase64(text).decode("utf-8", "surrogatepass"),
    ),
    int: simple("int", hex, lambda text: int(text, 16)),
    float: simple("float", str, float),
    complex: simple("complex", lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    Decimal: simple("decimal", str, Decimal),
    bytes: simple("bytes", _base64, _unbase64),
    bytearray: simple("bytearray", _base64, lambda text: bytearray(_unbase64(text))),
    uuid.UUID: simple("uuid", str, uuid.UUID),
    dt.datetime: _clock(dt.datetime),
    dt.time: _clock(dt.time),
    dt.date: simple("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: simple("timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: dt.timedelta(*v)),
    tuple: simple("tuple", list, tuple),
    set: simple("set", list, set),
    frozenset: simple("frozenset", list, frozenset),
    type(pathlib.Path()): simple("path", str, pathlib.Path),
    pathlib.PurePosixPath: simple("posixpath", str, pathlib.PurePosixPath),
    pathlib.PureWindowsPath: simple("windowspath", str, pathlib.PureWindowsPath),
    **library_types.EXACT,
}

BY_TAG = {rule.tag: rule for rule in (*_EXACT.values(), *_CLASS_RULES)} | {MAP: simple(MAP, dict.items, dict)}


@lru_cache(maxsize=1024)
def _rule_for(kind: type) -> EncodingRule | None:
    """Find the rule for a type: the exact one, else that of its family, else none."""
    if kind in _EXACT:
        return _EXACT[kind]
    return next((rule for rule in _CLASS_RULES if rule.owns and rule.owns(kind)), None)


@lru_cache(maxsize=1024)
def reference_of(kind: type) -> str:
    """Return the reference of a class. Raises EncodingRefused if no worker could find it."""
    try:
        return reference(kind)
    except SerializationError as error:
        raise EncodingRefused(error.message, error.suggestion) from None


def rule_of(kind: type) -> EncodingRule:
    """Return the rule by which values of a class are written; raises EncodingRefused if they cannot be, or no worker could find the class."""
    rule = _rule_for(kind) or _refuse_kind(kind)
    if rule.owns and not rule.named:
        reference_of(kind)
    return rule


def _refuse_kind(kind: type) -> EncodingRule:
    if is_mock(kind):
        raise EncodingRefused("a mock object cannot be serialized", "use a real value, or a scripted agent in tests")
    refuse_secret(kind)
    if issubclass(kind, Awaitable):
        what = f"a {kind.__name__} cannot be serialized"
        raise EncodingRefused(what, "write `await` in front of the call that returned it")
    what = f"object of type {type_name(kind)} cannot be serialized"
    raise EncodingRefused(what, "use plain data, a pydantic model or a dataclass, or register_custom_serializer()")
