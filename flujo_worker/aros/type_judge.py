"""Ask a type about a value that its JSON Schema refuses: the type has validators, aliases and enum hooks of its own (rule 18).

The type's functions see the decoded value, and decide. Only they convert scalars of the text: pydantic would also take "7" for a number,
which is for `coercion.allow` to say. So the question goes to a copy of the type's validator that takes such a scalar only in the kind that
JSON Schema asks for, and takes what the type's own functions made of it as pydantic does. The type itself reads the value later.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any, Final

from pydantic_core import PydanticCustomError, SchemaValidator, ValidationError

from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_client.schemas.core import Core, behind, core_of, referred_as, validator_by, with_parts
from flujo_client.schemas.fail_fast import stopping
from flujo_worker.aros.convert import fits
from flujo_worker.aros.decode import canonical
from flujo_worker.aros.outcome import Path
from flujo_worker.aros.typed import real_place

TypeRefusal = tuple[Path, ...]
"""The places where a type refuses a value; none if they are not known."""
NOWHERE: Final[TypeRefusal] = ()
Judge = Callable[[Any], TypeRefusal | None]

_GROUPS: Final = (list, tuple, set, frozenset)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


def judge_of(kind: Any) -> Judge | None:
    """Return the judge of anything that a `TypeAdapter` takes, or of pydantic's validator of it; None where pydantic has no such type."""
    try:
        return _judge_of(kind)
    except TypeError:  # it cannot be hashed
        return None


@functools.lru_cache(maxsize=64)
def _judge_of(kind: Any) -> Judge | None:
    core = core_of(kind)
    if core is None:
        return None
    validator = validator_by(stopping(_guarded(core), with_functions=True))
    return None if validator is None else functools.partial(_asked, kind, validator)


def _asked(kind: Any, validator: SchemaValidator, value: Any) -> TypeRefusal | None:
    if may_be_ambiguous(kind) and ambiguity(kind, value):
        return NOWHERE
    try:
        validator.validate_python(_copied(value))
    except ValidationError as error:
        return tuple({real_place(place, value): None for place, _ in _refusals(error)})
    except Exception:  # noqa: BLE001 - of a user's function: the schema's verdict stands
        return NOWHERE
    return None


def _refusals(error: ValidationError) -> list[tuple[Path, str]]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [(tuple(each["loc"]), each["type"]) for each in found]


def _copied(value: Any) -> Any:
    """Copy the containers, which a user's function may change. Raises UnicodeEncodeError for half a surrogate pair."""
    if isinstance(value, dict):
        return {_copied(key): _copied(each) for key, each in value.items()}
    if isinstance(value, str) and not value.isascii():
        value.encode()
    return [_copied(each) for each in value] if isinstance(value, list) else value


# --- what the type's own functions made ------------------------------------------------------------------------------


class _Made(threading.local):
    """The objects that functions around the present place have made, by their ids."""

    def __init__(self) -> None:
        self.stack: list[frozenset[int]] = []

    def has(self, value: Any) -> bool:
        return any(id(value) in each for each in self.stack)

    @contextmanager
    def inside(self, given: frozenset[int], made: Any) -> Iterator[None]:
        self.stack.append(_ids(made) - given)
        try:
            yield
        finally:
            self.stack.pop()


_made = _Made()


def _ids(value: Any) -> frozenset[int]:
    """Return the ids of a value and of all that is in it."""
    pending, found = [value], set[int]()
    while pending:
        each = pending.pop()
        if id(each) not in found:
            found.add(id(each))
            pending += each.values() if isinstance(each, dict) else each if isinstance(each, _GROUPS) else ()
    return frozenset(found)


def _before(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function around a validator from one before it."""
    return _around(lambda value, validator, *info: validator(function(value, *info)))


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    """Watch what a function around a validator gives to it."""

    def validate(value: Any, validator: Callable[..., Any], *info: Any) -> Any:
        given = _ids(value)

        def watched(made: Any, *place: Any) -> Any:
            with _made.inside(given, made):
                return validator(made, *place)

        return function(value, watched, *info)

    return validate


# --- the copy of the validator ---------------------------------------------------------------------------------------


def _guarded(core: Core) -> Core:
    """Copy a core schema so that it takes scalars of the text only in the kind that its JSON Schema asks for."""
    kind = core.get("type")
    if kind in _AS_JSON:  # a value of the text, before it is one of Python
        return referred_as(core, _guarded(core[_AS_JSON[kind]]))
    if kind == "union":
        # pydantic-ai adds a choice that reads JSON in a text to types that it asks for under a key: not in the schema
        choices = [each for each in core["choices"] if not (isinstance(each, dict) and each.get("type") == "json")]
        core = {**core, "choices": choices or core["choices"]}
    if kind == "chain":  # what later steps get is an earlier one's
        return {**core, "steps": [_guarded(core["steps"][0]), *core["steps"][1:]]}
    own = _lax(core)
    if "keys_schema" in own:  # JSON writes numbers that are keys as texts
        own["keys_schema"] = _lax(own["keys_schema"])
    copy = with_parts(own, _guarded, unchanged=_UNSEEN.get(kind, ()))
    if kind in _FUNCTIONS:
        function = {**core["function"], "function": _FUNCTIONS[kind](core["function"]["function"])}
        return {**copy, "type": "function-wrap", "function": function}
    takes = _taken(core)
    return copy if takes is None else _only(takes, copy)


def _lax(core: Core) -> Core:
    return {name: value for name, value in core.items() if name not in _LEFT_OUT}


_LEFT_OUT: Final = frozenset({"strict", "custom_init", "validate_default"})
"""JSON has less than Python; an `__init__` would ask the type's own validator; and a default is not the text's."""
_UNSEEN: Final[Mapping[Any, frozenset[str]]] = {"dict": frozenset({"keys_schema"}), "json": frozenset({"schema"})}
"""What a JSON Schema says nothing of: keys are texts anyway, and JSON in a text is a text."""
_AS_JSON: Final[Mapping[Any, str]] = {"json-or-python": "json_schema", "lax-or-strict": "lax_schema"}
_FUNCTIONS: Final = {"function-before": _before, "function-wrap": _around}


def _only(takes: Callable[[Any], bool], core: Core) -> Core:
    def guard(value: Any) -> Any:
        if takes(value) or _made.has(value):
            return value
        raise PydanticCustomError("not_converted", "this kind of value is not converted")

    return behind(guard, core)


def _taken(core: Core) -> Callable[[Any], bool] | None:
    """Return which values of a text a validator may have; None for one that converts none."""
    match core.get("type"):
        case "literal":
            return functools.partial(_is_one_of, [getattr(each, "value", each) for each in core["expected"]])
        case "enum":
            members, missing = [each.value for each in core["members"]], core["cls"]._missing_
            return lambda value: _is_one_of(members, value) or missing(value) is not None
        case kind:
            return _KINDS.get(kind)


def _is_one_of(members: list[Any], value: Any) -> bool:
    return any(isinstance(each, bool) is isinstance(value, bool) and each == value for each in members)


def _is_number(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_decimal(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, str) and _DECIMAL.fullmatch(value) is not None)


def _has_no_twins(value: Any) -> bool:
    return isinstance(value, list) and len(set(map(canonical, value))) == len(value)


_KINDS: Final[Mapping[Any, Callable[[Any], bool]]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: fits(value, "integer"),
    "float": _is_number,
    "decimal": _is_decimal,
    **dict.fromkeys(("str", "bytes", "complex", "uuid", "url", "multi-host-url"), _is_text),
    **dict.fromkeys(("date", "time", "datetime", "timedelta"), _is_text),
    "generator": lambda value: isinstance(value, list),
    **dict.fromkeys(("set", "frozenset"), _has_no_twins),
}


# --- values that were changed in Python ------------------------------------------------------------------------------

Places = frozenset[tuple[Path, str]]

_INSTANCES: Final = frozenset({"model", "dataclass"})
_NONE: Final[Places] = frozenset()


def misfits(value: Any, output_type: Any) -> Places:
    """List where a value does not fit a type, with what is wrong there; also what a validator refuses of its own result, so compare with before."""
    validator = _validator(output_type)
    if validator is None:
        return _NONE
    try:
        validator.validate_python(value, strict=True, by_name=True)
    except ValidationError as error:
        return frozenset(_refusals(error))
    except Exception:  # noqa: BLE001 - a user's validator that cannot take its own result says nothing of it
        return _NONE
    return _NONE


def can_judge(output_type: Any) -> bool:
    """Return whether a type can be asked about its own values."""
    return _validator(output_type) is not None


@functools.lru_cache(maxsize=64)
def _validator(output_type: Any) -> SchemaValidator | None:
    core = core_of(output_type)
    return None if core is None else validator_by(_asking_instances(core))


def _asking_instances(core: Core) -> Core:
    """Copy a core schema so that instances are validated too."""
    copy = with_parts(core, _asking_instances, unchanged={"config"})
    return {**copy, "revalidate_instances": "always"} if core.get("type") in _INSTANCES else copy
