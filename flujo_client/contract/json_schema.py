"""JSON Schemas as they are written in pipelines: what can be checked of one before anything is sent, and whether a value holds under it.

Only workers need `jsonschema-rs`: where only the client is installed, they find what is wrong.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from flujo_client.errors import FlujoError
from flujo_client.redact import preview
from flujo_client.schemas.parts import kind_of
from flujo_client.serial import canonical

if TYPE_CHECKING:
    from flujo_client.schemas.faults import SchemaFault
    from flujo_client.schemas.schema import Check

_SHOWN = 40
"""Characters of a wrong value that are shown to who gave it."""

_MOST_CHOICES = 10


def wrong_schema(schema: Any) -> str | None:
    """Return why this is not a JSON Schema; None if it is one, or if that cannot be checked here (workers then do)."""
    try:
        written = canonical(schema)
    except FlujoError as error:
        return f"is not JSON: {error.message}"
    try:
        _check(json.dumps(json.loads(written)))
    except ImportError:
        return None
    except ValueError as error:
        return f"is not a JSON Schema: {str(error).splitlines()[0][:200]}"
    return None


def fits_schema(value: Any, schema: dict[str, Any], *, shows_value: bool = False) -> str | None:
    """Return what is wrong with a value by a JSON Schema; None if nothing is, or if that cannot be checked here (the worker then does).

    With `shows_value`, a value that is wrong as a whole is shown to the one who gave it. Its parts are never shown.
    """
    try:
        check = _check(json.dumps(schema))
    except ImportError:
        return None
    try:
        plain = to_jsonable_python(value)  # whole, however large it is
    except PydanticSerializationError:
        return None
    except ValueError:
        return "answer is nested too deep"
    if check.valid(plain):
        return None
    from flujo_client.schemas.faults import faults, most_specific

    first = most_specific(faults(check, plain))[0]
    return f"{'.'.join(map(str, first.path)) or 'answer'} {_broken(first, shows_value=shows_value and not first.path)}"


def _broken(fault: SchemaFault, *, shows_value: bool) -> str:
    """Return which rule a value breaks, and how, where that takes a few words."""
    kind = kind_of(fault.found)
    found = repr(preview(str(fault.found), _SHOWN)) if shows_value and kind not in {"object", "array"} else kind
    broken = f"breaks the rule '{fault.keyword}'"
    match fault.rule:
        case {"types": [*types]}:
            return f"{broken}: expected {' or '.join(map(str, types))}, got {found}"
        case {"options": [*options]}:
            more = ", …" if len(options) > _MOST_CHOICES else ""
            return f"{broken}: expected one of {', '.join(map(repr, options[:_MOST_CHOICES]))}{more}, got {found}"
        case {"property": str(name)}:
            return f"{broken}: it lacks '{name}'"
        case {"limit": int() | float() as limit}:
            return f"{broken}, which is {limit}"
    return broken


@functools.lru_cache(maxsize=128)
def _check(schema: str) -> Check:
    from flujo_client.schemas.schema import Check

    return Check(json.loads(schema), formats=False)
