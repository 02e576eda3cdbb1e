"""Revalidates values of a type that code may have changed since: pydantic takes an instance of a model as it is.

Pure. In: a type and a value. Out: where the value no longer fits, as places and messages; nothing where the type cannot be asked.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import SchemaError, SchemaValidator

from flujo_client.schemas.core import core_of, with_parts

Places = frozenset[tuple[tuple[int | str, ...], str]]

_INSTANCES: Final = frozenset({"model", "dataclass"})
_NONE: Final[Places] = frozenset()


def misfits(value: Any, output_type: Any) -> Places:
    """List where a value does not fit a type, looking into models and dataclasses, with what is wrong there.

    A validator that refuses its own result is listed too: compare with what was listed before the value was changed.
    """
    validator = _validator(output_type)
    if validator is None:
        return _NONE
    try:
        validator.validate_python(value, strict=True, by_name=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return frozenset((tuple(each["loc"]), each["type"]) for each in found)
    except Exception:  # noqa: BLE001 - a user's validator that cannot take its own result says nothing of it
        return _NONE
    return _NONE


def can_judge(output_type: Any) -> bool:
    """Return whether a type can be asked about its own values."""
    return _validator(output_type) is not None


@functools.lru_cache(maxsize=64)
def _validator(output_type: Any) -> SchemaValidator | None:
    core = core_of(output_type)
    try:
        # Not the models' validators, which pydantic would reuse.
        return None if core is None else SchemaValidator(_asking_instances(core), None, False)  # noqa: FBT003 - it has no keyword
    except SchemaError:
        return None


def _asking_instances(core: Any) -> Any:
    """Copy a core schema so that instances are validated too."""
    if isinstance(core, list | tuple):
        return type(core)(map(_asking_instances, core))
    if not isinstance(core, dict):
        return core
    copy = with_parts(core, _asking_instances, unchanged={"config"})
    return {**copy, "revalidate_instances": "always"} if core.get("type") in _INSTANCES else copy
