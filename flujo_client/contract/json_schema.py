"""JSON Schemas as they are written in pipelines: what can be told of one before anything is sent, and whether a value holds under it.

`jsonschema-rs` is a worker's need: where only the client is installed, the workers find out what is wrong.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from flujo_client.errors import FlujoError
from flujo_client.serial import canonical

if TYPE_CHECKING:
    from flujo_client.contract.schema import Check


def wrong_schema(schema: Any) -> str | None:
    """Say why this is no JSON Schema; None: it is one, or nobody here can tell (then the workers do)."""
    try:
        written = canonical(schema)
    except FlujoError as error:
        return f"is no JSON: {error.message}"
    try:
        _check(json.dumps(json.loads(written)))
    except ImportError:
        return None
    except ValueError as error:
        return f"is no JSON Schema: {str(error).splitlines()[0][:200]}"
    return None


def fits_schema(value: Any, schema: dict[str, Any]) -> str | None:
    """Say what is wrong with a value by a JSON Schema; None: nothing, or nobody here can tell (then the worker does)."""
    try:
        check = _check(json.dumps(schema))
    except ImportError:
        return None
    try:
        plain = to_jsonable_python(value)  # whole, however large it is (U-36)
    except PydanticSerializationError:
        return None
    except ValueError:
        return "answer is nested too deep"
    if check.valid(plain):
        return None
    from flujo_client.contract.faults import faults, most_specific

    first = most_specific(faults(check, plain))[0]
    return f"{'.'.join(map(str, first.path)) or 'answer'} breaks the rule '{first.keyword}'"


@functools.lru_cache(maxsize=128)
def _check(schema: str) -> Check:
    from flujo_client.contract.schema import Check

    return Check(json.loads(schema), formats=False)
