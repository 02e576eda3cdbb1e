"""Types that references name without a module, and generic models, which are named by their class and its parameters.

    list                                    a type of the table below
    shop:Page["shop:Item"]                  a generic model: its class, and a JSON list of its parameters
    shop:Page[["list","shop:Item"]]         a parameter that is a type with parameters itself

Nothing here imports a module: what a reference of the form `module:Name` names is asked of the caller, for each parameter too.
"""

from __future__ import annotations

import builtins
import collections
import datetime as dt
import decimal
import fractions
import functools
import ipaddress
import operator
import pathlib
import re
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final, NewType

import pydantic
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from typing_extensions import TypeAliasType

from flujo_client.errors import SerializationError
from flujo_client.serial.tree import Tree, dumps, loads

_OF_MODULES: Final = {
    builtins: "bool int float complex str bytes bytearray list dict tuple set frozenset range object type",
    collections: "Counter OrderedDict defaultdict deque",
    dt: "date datetime time timedelta timezone",
    decimal: "Decimal",
    fractions: "Fraction",
    ipaddress: "IPv4Address IPv4Interface IPv4Network IPv6Address IPv6Interface IPv6Network",
    pathlib: "Path PurePath PurePosixPath PureWindowsPath",
    re: "Pattern",
    uuid: "UUID",
    zoneinfo: "ZoneInfo",
    typing: "Any Dict FrozenSet Iterable List Literal Mapping Sequence Set Tuple Union",
    pydantic: "AnyHttpUrl AnyUrl AwareDatetime ByteSize EmailStr FileUrl HttpUrl IPvAnyAddress IPvAnyInterface IPvAnyNetwork"
    " NaiveDatetime NameEmail",
}
_NAMED: Final[dict[str, Any]] = {
    **{name: getattr(module, name) for module, names in _OF_MODULES.items() for name in names.split()},
    "None": None,
    "NoneType": type(None),
    "...": ...,
    "|": types.UnionType,
}
_NAMES: Final = {id(each): name for name, each in _NAMED.items()}
_PARAMETERS: Final = ('["', "[[")
"""How the parameters of a model begin; the name that pydantic gives one by itself, such as `Page[Item]`, has no quotes."""

Refer = Callable[[Any], str]
Find = Callable[[str], Any]


def name_of(thing: Any) -> str | None:
    """Return the name of a type of the table."""
    return _NAMES.get(id(thing))


def find(reference: str, resolve: Find) -> Any:
    """Return the type of the table with this name, or what `resolve` gives for a reference."""
    return _NAMED[reference] if reference in _NAMED else resolve(reference)


# --- generic models --------------------------------------------------------------------------------------------------


def parameters_of(kind: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the class and the parameters of a generic model that has been given some."""
    given = vars(kind).get("__pydantic_generic_metadata__") if isinstance(kind, type) else None
    return (given["origin"], given["args"]) if given and given["args"] else None


def written(kind: Any, refer: Refer) -> str | None:
    """Write a generic model with its parameters; None if the same class cannot be made from what would be written.

    `refer` writes the reference of a class; it raises SerializationError if a worker could not find the class, or one of the parameters.
    """
    origin, args = parameters_of(kind) or (kind, ())
    try:
        known: dict[str, Any] = {}
        reference = _model_reference(origin, args, functools.partial(_kept, refer, known))
        found = made(reference, lambda ref: known[ref])
    except (_Unwritten, PydanticUserError, TypeError):
        return None
    return reference if found is kind else None


def has_parameters(reference: str) -> bool:
    """Return whether a reference names a generic model with its parameters."""
    return reference.endswith("]") and any(mark in reference for mark in _PARAMETERS)


def made(reference: str, resolve: Find) -> Any:
    """Make the generic model that a reference with parameters names; raises SerializationError if it is damaged.

    `resolve` returns what a reference without parameters names, and refuses what is not allowed.
    """
    name, _, parameters = reference.partition("[")
    origin: Any = resolve(name)
    if not (isinstance(origin, type) and issubclass(origin, BaseModel)):
        raise SerializationError(f"{name!r} is not a pydantic model, so it has no parameters")
    return origin.__class_getitem__(tuple(_parameter(each, resolve) for each in loads(f"[{parameters}".encode())))


class _Unwritten(Exception):
    """A parameter that has no form on the wire."""


def _kept(refer: Refer, known: dict[str, Any], thing: Any) -> str:
    reference = refer(thing)
    known[reference] = thing
    return reference


def _model_reference(origin: Any, args: tuple[Any, ...], refer: Refer) -> str:
    return refer(origin) + dumps([_parameter_tree(each, refer) for each in args]).decode()


def _parameter_tree(kind: Any, refer: Refer) -> Tree:
    if (name := name_of(kind)) is not None:
        return name
    if inner := parameters_of(kind):
        return _model_reference(*inner, refer)
    if isinstance(kind, types.UnionType):
        return ["|", *(_parameter_tree(each, refer) for each in kind.__args__)]
    if isinstance(kind, types.GenericAlias) or typing.get_origin(kind) is not None:
        return _alias_tree(kind, refer)
    if _is_type(kind):
        return refer(kind)
    raise _Unwritten


def _alias_tree(alias: Any, refer: Refer) -> Tree:
    origin, args = typing.get_origin(alias), typing.get_args(alias)
    name = "" if isinstance(alias, types.GenericAlias) else getattr(alias, "_name", None) or ""
    spelled = getattr(typing, name, origin)
    if spelled is typing.Optional:
        spelled = typing.Union
    if origin is typing.Literal:
        if not all(isinstance(each, str | int | bool | None) for each in args):
            raise _Unwritten
        return ["Literal", *args]
    return [_parameter_tree(spelled, refer), *(_parameter_tree(each, refer) for each in args)]


def _parameter(tree: Tree, resolve: Find) -> Any:
    if isinstance(tree, str):
        found = find(tree, lambda ref: made(ref, resolve) if has_parameters(ref) else resolve(ref))
        if tree not in _NAMED and not _is_type(found):
            raise SerializationError(f"{tree!r} is not a type")
        return found
    form, *args = tree
    if form == "Literal":
        return typing.Literal[tuple(args)]
    if form == "|":
        return functools.reduce(operator.or_, (_parameter(each, resolve) for each in args))
    return _parameter(form, resolve)[tuple(_parameter(each, resolve) for each in args)]


def _is_type(kind: Any) -> bool:
    return isinstance(kind, type | NewType | TypeAliasType)
