"""The paths of all keys below a table, with what may stand there: so that rules find steps, texts and agents by their shapes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flujo_client.blueprint.shapes import INSIDE, AnyOf, ListOf, MapOf, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.blueprint.shapes import FieldType


@dataclass(frozen=True, slots=True)
class KeyPath:
    """Where a value of a shape may stand.

    Attributes:
        shape: what stands there.
        path: keys from the table down; `*` is any key or index.
        runs: how the steps there run beside each other, as `Key.runs`.
        after: whether texts there are read when the steps inside have run.
    """

    shape: FieldType
    path: tuple[str, ...] = ()
    runs: str = INSIDE
    after: bool = False


def key_paths(top: KeyPath) -> Iterator[KeyPath]:
    """Yield a path and every path below it, once for each shape that may stand there."""
    yield top
    shape = top.shape
    if isinstance(shape, Table):
        for name, key in shape.keys.items():
            yield from key_paths(KeyPath(key.shape, (*top.path, name), key.runs, top.after or key.after))
    elif isinstance(shape, ListOf | MapOf):
        yield from key_paths(replace(top, shape=shape.each, path=(*top.path, "*")))
    elif isinstance(shape, AnyOf):
        for each in shape.shapes:
            yield from key_paths(replace(top, shape=each))
