"""Plain trees read as types: the way back from `safe_serialize`, for what has one."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from pydantic import TypeAdapter

from flujo_client.errors import SerializationError
from flujo_client.schemas.ambiguity import ambiguity
from flujo_client.schemas.fail_fast import fail_fast
from flujo_client.serial.custom import deserializer_for, name_of
from flujo_client.serial.tree import Tree, type_name

T = TypeVar("T")


@overload
def safe_deserialize(tree: Tree) -> Any: ...
@overload
def safe_deserialize(tree: Tree, target_type: type[T]) -> T: ...
def safe_deserialize(tree: Tree, target_type: type[T] | None = None) -> Any:
    """Read a plain tree as `target_type`, by its registered deserializer or else by pydantic.

    Raises:
        SerializationError: the tree does not fit the type.
    """
    if target_type is None:
        return tree
    try:
        read = deserializer_for(name_of(target_type))
        return read(tree) if read is not None else _validated(tree, target_type)
    except SerializationError:
        raise
    except Exception as error:  # users' deserializers run here
        message = f"does not fit {type_name(target_type)}: {type(error).__name__}"
        raise SerializationError(message, cause=error) from error


def _validated(tree: Tree, target_type: type[T]) -> T:
    if ambiguous := ambiguity(target_type, tree):
        raise SerializationError(f"does not fit {type_name(target_type)}: {ambiguous}")
    fail_fast(target_type, tree)
    return TypeAdapter(target_type).validate_python(tree)
