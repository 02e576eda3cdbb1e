"""Pydantic's core schemas: how pydantic validates a type. Pure."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError, SchemaValidator
from pydantic_core.core_schema import no_info_before_validator_function

Core = dict[str, Any]

_CAN_REBUILD: Final = "_use_prebuilt" in inspect.signature(SchemaValidator).parameters  # since pydantic 2.13
_marking: Final = threading.Lock()

_NO_SCHEMAS: Final = frozenset({"metadata", "serialization", "default", "expected", "members"})


def core_of(kind: Any) -> Core | None:
    """Return the core schema of anything a `TypeAdapter` takes, or of what pydantic validates with; None where it has none."""
    validator = getattr(kind, "_schema_validator", kind)  # the validator behind pydantic's plugins
    if isinstance(validator, SchemaValidator):
        made: Any = validator.__reduce__()  # its pickled form; nothing else exposes its schema
        return cast("Core", made[1][0])
    try:
        return dict(TypeAdapter(kind).core_schema)  # of a class with an unknown annotation it is a stand-in that raises
    except (PydanticUserError, NameError, TypeError):  # among them an annotation that names nothing
        return None


def validator_by(core: Core) -> SchemaValidator | None:
    """Make a validator by a core schema, without those of its models, which pydantic would reuse; None if it cannot be made."""
    try:
        if _CAN_REBUILD:
            return SchemaValidator(core, None, False)  # noqa: FBT003 - it has no keyword
        with _incomplete(core):
            return SchemaValidator(core)
    except SchemaError:
        return None


@contextmanager
def _incomplete(core: Core) -> Iterator[None]:
    """Mark the models of a schema as incomplete: pydantic-core without the option above reuses only the validators of complete ones."""
    classes = {each["cls"] for each in schemas_in(core) if vars(each.get("cls", object)).get("__pydantic_complete__")}
    with _marking:
        try:
            for each in classes:
                type.__setattr__(each, "__pydantic_complete__", False)
            yield
        finally:
            for each in classes:
                type.__setattr__(each, "__pydantic_complete__", True)


def behind(function: Callable[[Any], Any], core: Core) -> Core:
    """Put a function in front of a schema; the result has the schema's reference."""
    inner: Any = {name: each for name, each in core.items() if name != "ref"}
    return referred_as(core, dict(no_info_before_validator_function(function, inner)))


def referred_as(core: Core, copy: Core) -> Core:
    """Give a copy the reference of a schema, if it has one."""
    return {**copy, "ref": core["ref"]} if "ref" in core else copy


def schemas_in(core: Any) -> Iterator[Core]:
    """Yield every schema inside a core schema, including itself."""
    pending = [core]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("type"), str):
                yield each
            for name, value in each.items():
                if name not in {"metadata", "config", "serialization"}:
                    pending.extend(value.values() if is_by_name(name, value) else [value])
        elif isinstance(each, list | tuple):
            pending.extend(each)


def is_by_name(name: str, value: Any) -> bool:
    """Return whether a part of a core schema holds schemas under names of the author's, which may be those of pydantic's own keys."""
    return name in {"fields", "choices"} and isinstance(value, dict)


def with_parts(core: Core, change: Callable[[Core], Any], *, unchanged: Collection[str] = ()) -> Core:
    """Copy a core schema and apply `change` to each schema right below it; values that only look like schemas, and `unchanged` parts, stay."""

    def mapped(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(mapped, part))
        return change(part) if isinstance(part, dict) else part

    def part(name: str, value: Any) -> Any:
        if is_by_name(name, value):
            return {key: mapped(each) for key, each in value.items()}
        return value if name in _NO_SCHEMAS or name in unchanged else mapped(value)

    return {name: part(name, value) for name, value in core.items()}
