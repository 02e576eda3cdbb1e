"""Read data for expressions and templates: keys, fields and places in lists, never an attribute of a class. Pure."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import islice
from typing import Any

from pydantic import BaseModel

from flujo_client.contract.suggestions import MOST, did_you_mean

MAX_STEPS = 300_000
"""Steps of one evaluation: a value read, compared or written is one, and so are 64 characters of a text."""

LISTS = (list, tuple)
LENGTHS = ("length", "len", "size", "count")
"""Names of the filter `length` in other languages."""

SIMPLE = frozenset({str, int, float, bool, type(None)})
"""The classes of simple values without parts; most values have one of them, and the lookup is quick."""

_CHARACTERS_IN_A_STEP = 64
METHODS = {"get": (1, 2), "lower": (0, 0), "upper": (0, 0), "strip": (0, 0), "startswith": (1, 1), "endswith": (1, 1)}
"""The methods that may be called on a value, with their minimum and maximum number of arguments."""
_OF_TEXTS: dict[str, Callable[..., Any]] = {name: getattr(str, name) for name in METHODS if name != "get"}


class EvaluationError(Exception):
    """An evaluation that cannot continue; the caller that knows the place sets `at`."""

    def __init__(self, what: str, way_out: str | None = None) -> None:
        super().__init__(what)
        self.what, self._way_out = what, way_out
        self.at: int | None = None

    def way_out(self) -> str | None:
        return self._way_out


class Missing(EvaluationError):
    """A key, a field or a place that a value does not have. `name` is the whole path, as it is written."""

    def __init__(self, holder: Any, key: Any, name: str) -> None:
        super().__init__(f"`{name}` does not exist: it is read from {kind(holder)}")
        self._holder, self._key, self.name = holder, key, name

    def way_out(self) -> str | None:
        """Suggest the nearest name that exists; computed only when the message is read."""
        fields = fields_of(self._holder)
        if fields is None and self._key in LENGTHS and isinstance(self._holder, (str, *LISTS)):
            return f"write {self.name.rpartition('.')[0]} | length"
        if fields is None or not isinstance(self._key, str):
            return None
        return did_you_mean(self._key, (each for each in islice(fields, MOST) if isinstance(each, str)))


class EvaluationBudget:
    """The remaining steps of an evaluation."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise EvaluationError(f"the evaluation takes more than {MAX_STEPS} steps", "do it in a separate step")

    def spend_on(self, value: Any) -> None:
        """Spend the steps for reading one value: more for a long text."""
        self.spend(1 + len(value) // _CHARACTERS_IN_A_STEP if isinstance(value, str) else 1)


def kind(value: Any) -> str:
    """Return the type of a value in a reader's words, never the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    words = (((int, float), "a number"), (str, "a text"), (LISTS, "a list"), (Mapping, "a mapping"))
    return next((word for types, word in words if isinstance(value, types)), f"a value of type {type(value).__name__}")


def fields_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the keys of a mapping or the fields of a model with their values; None for anything else."""
    if type(value) in SIMPLE:
        return None
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        fields = {name: value.__dict__[name] for name in type(value).model_fields if name in value.__dict__}
        extra = value.__pydantic_extra__
        return ChainMap(extra, fields) if extra else fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def read(holder: Any, key: Any, name: str) -> Any:
    """Read a key of a mapping, a field of a model, or a place in a list. Raises Missing, with the name of what is read."""
    fields = fields_of(holder)
    if fields is not None:
        if has(fields, key):
            return bare(fields[key])
    elif isinstance(holder, LISTS) and isinstance(key, int) and -len(holder) <= key < len(holder):
        return bare(holder[key])
    raise Missing(holder, key, name)


def called(name: str, value: Any, work: EvaluationBudget, *arguments: Any) -> Any:
    """Call one of the METHODS."""
    if name == "get":
        return _got(value, *arguments)
    if not isinstance(value, str):
        raise EvaluationError(f"{kind(value)} has no {name}()", "only texts have")
    if wrong := [each for each in arguments if not isinstance(each, str)]:
        raise EvaluationError(f"{name}() takes a text, not {kind(wrong[0])}")
    work.spend_on(value)
    return _OF_TEXTS[name](value, *arguments)


def _got(holder: Any, key: Any, otherwise: Any = None) -> Any:
    fields = fields_of(holder)
    if fields is None:
        raise EvaluationError(f"{kind(holder)} has no get()", "only mappings and models have")
    return bare(fields[key]) if has(fields, key) else otherwise


def bare(value: Any) -> Any:
    """Return the value of an enumeration's member; anything else unchanged."""
    return value.value if type(value) not in SIMPLE and isinstance(value, Enum) else value


def has(fields: Mapping[Any, Any], key: Any) -> bool:
    try:
        return key in fields
    except TypeError:  # a list, for example, cannot be a key
        return False
