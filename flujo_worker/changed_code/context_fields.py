"""The recorded fields of a context model, and the JSON values that a field accepts."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flujo_client.contract.code import CONTEXT_FIELD
from flujo_client.pipeline.context_info import REQUIRED, SCHEMA, TYPE, fields_of_model, once_per_model
from flujo_client.plan.identity import whole
from flujo_client.redact import preview, redact_tree
from flujo_client.serial import digest, dumps
from flujo_worker.agents.parts import AgentPart
from flujo_worker.runtime.source import DIGEST_LENGTH

_LONGEST_DEFAULT: Final = 40


@once_per_model
def context_parts(model: type[BaseModel]) -> tuple[AgentPart, ...]:
    """Return each field as a part of what a step is performed with: its type, and its default."""
    known = fields_of_model(model)
    return tuple(_part(name, field, known[name]) for name, field in model.model_fields.items())


def _part(name: str, field: FieldInfo, known: dict[str, Any]) -> AgentPart:
    default = _default(field)
    shown = "required" if known[REQUIRED] else f"default {_shown(name, default)}"
    made_of = [known[SCHEMA], known[REQUIRED], default]
    return AgentPart(CONTEXT_FIELD + f"'{name}'", digest(whole(made_of))[:DIGEST_LENGTH], f"{known[TYPE]}, {shown}")


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return f"of {getattr(field.default_factory, '__qualname__', type(field.default_factory).__qualname__)}()"
    return None if field.default is PydanticUndefined else whole(field.default)


def _shown(name: str, default: Any) -> str:
    shown = redact_tree(default, name)
    return preview(dumps(shown).decode(), _LONGEST_DEFAULT)


_PLAIN: Final = {str: "text", bool: "bool", int: "int", float: "float", type(None): "null", list: "list", dict: "dict"}
_OTHER: Final = "other"


@once_per_model
def shapes_of_model(model: type[BaseModel]) -> dict[str, frozenset[str]]:
    """Return for each field whose type says so which stored values are of it: text, numbers, lists and so on, or values with a tag."""
    found = {name: _shapes(field.rebuild_annotation()) for name, field in model.model_fields.items()}
    return {name: shapes for name, shapes in found.items() if shapes is not None}


def shape_of(tree: Any) -> str:
    """Return what a stored value is."""
    return _OTHER if isinstance(tree, dict) and "$" in tree else _PLAIN[type(tree)]


def _shapes(annotation: Any) -> frozenset[str] | None:
    """Return the shapes of a type's values; None where any may be one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _shapes(get_args(annotation)[0])
    if origin is Literal:
        return frozenset(_PLAIN.get(type(each), _OTHER) for each in get_args(annotation))
    if origin in (Union, UnionType):
        parts = [_shapes(each) for each in get_args(annotation)]
        return None if None in parts else frozenset().union(*(each for each in parts if each))
    kind = type(None) if annotation is None else origin or annotation
    if kind is float:
        return frozenset({"float", "int"})
    if kind in _PLAIN:
        return frozenset({_PLAIN[kind]})
    return frozenset({_OTHER}) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
