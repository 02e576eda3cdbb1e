"""Pydantic's errors about large values, bounded: the first wrong element of a list or mapping ends its validation. Pure.

Pydantic collects an error of up to a kilobyte for each wrong element, so 5 MB of wrong elements take gigabytes (ADR 26). Before a large
value is validated, a copy of the type's validator that stops early looks at it. Small values are left to pydantic.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, SchemaValidator

from flujo_client.schemas.ambiguity import TOO_AMBIGUOUS, ambiguity
from flujo_client.schemas.core import Core, behind, core_of, schemas_in, validator_by, with_parts

LARGE: Final = 10_000
"""Parts of a value from which on it is large."""
LARGE_TEXT: Final = 2 * LARGE
"""Characters of the shortest JSON with as many parts."""
MOST_UNKNOWN: Final = 1_000
"""Members that a large object may have in addition to the fields of a type that forbids others."""

_STOPS: Final = frozenset({"list", "set", "frozenset", "tuple", "generator", "dict"})
_FIELDS: Final = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_SAME_IN_BOTH: Final = frozenset({"str", "int", "float", "bool"})


def refuse_costly(kind: Any, data: Any, **options: Any) -> None:
    """Raise ValidationError for data that would cost pydantic too much: ambiguous data, or large data that do not fit. Options are those of `fail_fast`."""
    refuse_ambiguous(kind, data)
    fail_fast(kind, data, **options)


def refuse_costly_assignment(model: BaseModel, name: str, value: Any) -> None:
    """Raise ValidationError for a value whose assignment to a field would cost pydantic too much; the model is not changed."""
    refuse_ambiguous(type(model), {name: value}, name)
    if _is_large(value) and (validator := _validator(type(model))) is not None:
        validator.validate_assignment(model.model_copy(), name, value)


def refuse_ambiguous(kind: Any, data: Any, *place: str) -> None:
    """Raise ValidationError, with this place, for data that a recursive union could match in too many ways; see `ambiguity`."""
    if ambiguity(kind, data) is not None:
        found = InitErrorDetails(type=PydanticCustomError("ambiguous", TOO_AMBIGUOUS), loc=place, input=data)
        raise ValidationError.from_exception_data("data", [found])


def fail_fast(kind: Any, data: Any, **options: Any) -> None:
    """Validate large data until the first wrong element, which raises ValidationError.

    `kind` is anything a `TypeAdapter` takes, or pydantic's validator of it; `options` are those of `validate_python`, such as `by_name`.
    """
    if _is_large(data) and (validator := _validator(kind)) is not None:
        validator.validate_python(data, **options)


def fail_fast_json(kind: Any, text: str, **options: Any) -> None:
    """Validate a large JSON text by a type as `fail_fast` validates data; a text that is not JSON is left to pydantic."""
    if len(text) < LARGE_TEXT or (validator := _validator(kind)) is None:
        return
    try:
        validator.validate_json(text, **options)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
            raise


def places_of(error: ValidationError, whole: str = "", most: int = sys.maxsize) -> str:
    """Return the places that do not fit, and why, without their values; `whole` is the name of the value itself."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    named = ((".".join(map(str, each["loc"])) or whole, each["msg"]) for each in found[:most])
    texts = [f"{place}: {message}" if place else message for place, message in named]
    return "; ".join(texts) + (f"; and {len(found) - most} more" if len(found) > most else "")


def _is_large(data: Any) -> bool:
    pending, count = [data], 0
    while pending and count < LARGE:
        part = pending.pop()
        count += 1
        if isinstance(part, Mapping):
            pending.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            count += max(0, len(part) - LARGE)
            pending.extend(list(part)[:LARGE])
    return count >= LARGE


def _validator(kind: Any) -> SchemaValidator | None:
    try:
        return _made(kind)
    except TypeError:  # it cannot be hashed
        return _made.__wrapped__(kind)


@functools.lru_cache(maxsize=64)
def _made(kind: Any) -> SchemaValidator | None:
    core = core_of(kind)
    if core is None:
        return None
    with_functions = not any(map(_is_strict, schemas_in(core)))
    return validator_by(stopping(core, with_functions=with_functions))


def _is_strict(core: Core) -> bool:
    """Return whether a schema takes more from JSON than from Python: a function in front of it would make Python of JSON."""
    is_strict = core.get("strict") and core["type"] not in _SAME_IN_BOTH
    return bool(is_strict or (core.get("config") or {}).get("strict"))


def stopping(core: Core, *, with_functions: bool, forbids: bool = False) -> Core:
    """Copy a core schema so that it stops at the first wrong element; it accepts the same values.

    `with_functions` puts functions in front of objects as well: those of strict types would see Python instead of JSON. `forbids` says whether
    the type around it forbids unknown members.
    """
    extra = (core.get("config") or {}).get("extra_fields_behavior", "forbid" if forbids else "ignore")
    forbids = core.get("extra_behavior", extra) == "forbid"
    inner = functools.partial(stopping, with_functions=with_functions, forbids=forbids)
    copy = with_parts(core, inner, unchanged={"config"})
    kind = core.get("type")
    if kind in _STOPS:
        return {**copy, "fail_fast": True}
    if kind in _FIELDS and with_functions and forbids:
        return behind(_few_unknown(len(core["fields"])), copy)
    return copy


def _few_unknown(fields: int) -> Callable[[Any], Any]:
    def few_unknown(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > fields + MOST_UNKNOWN:
            raise PydanticCustomError("extra_forbidden", "Extra inputs are not permitted")
        return value

    return few_unknown
