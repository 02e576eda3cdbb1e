"""Trees as JSON text for a jsonb column that code reads back: whole and equal, or refused with the place.

`lenient` is for what people are shown: it cuts and marks. Nothing that code reads back may go through it.
"""

from __future__ import annotations

from math import copysign
from typing import TYPE_CHECKING, Any, Final

from flujo_client.errors import SerializationError
from flujo_client.serial.lenient import safe_serialize
from flujo_client.serial.rule import EncodingRefused, step_to
from flujo_client.serial.tree import Tree, dumps, is_storable_text, storable_text, type_name
from flujo_client.sizes import MAX_NESTING

if TYPE_CHECKING:
    from collections.abc import Callable

_INTEGER_FROM: Final = 1e16
"""From here on Postgres gives a float back as an integer."""


def stored(tree: Tree, *, path: str) -> str:
    """Write a tree as JSON text that jsonb gives back equal; errors call it `path`.

    Raises SerializationError: it is not plain JSON, or jsonb cannot hold a part of it; the place is named.
    """
    try:
        _check(tree, 0, {})
    except EncodingRefused as refused:
        error = refused.as_error(path)
    else:
        return dumps(tree).decode()
    raise error


def stored_safely(tree: Tree) -> str:
    """Write a tree of ours that carries text of models and errors: whole, and what jsonb does not take replaced."""
    try:
        text = dumps(tree)
    except SerializationError:  # a lone surrogate, a number that is too large
        return dumps(_storable(tree)).decode()
    return (dumps(_storable(tree)) if b"\\u0000" in text else text).decode()


def _check(tree: Tree, depth: int, checked: dict[int, int]) -> None:
    """Refuse what jsonb would not give back equal. `checked`: the depths of the mappings and lists that were checked, by their ids."""
    kind = type(tree)
    if kind is dict or kind is list:
        if depth == MAX_NESTING:
            raise EncodingRefused(f"nested more than {MAX_NESTING} levels deep", "flatten the value")
        if checked.get(id(tree), -1) >= depth:  # a part that is in several places, such as the node of equal branches
            return
        checked[id(tree)] = depth
        for key, item in tree.items() if kind is dict else enumerate(tree):
            try:
                _check_key(key, of=kind)
                if type(item) is not str or not item.isascii() or "\0" in item:
                    _check(item, depth + 1, checked)
            except EncodingRefused as refused:
                refused.past(tree, step_to(key))
                raise
    elif kind not in _IS_KEPT:
        what = f"object of type {type_name(kind)} is not plain JSON"
        raise EncodingRefused(what, "use texts, numbers, lists and mappings")
    elif not _IS_KEPT[kind](tree):
        raise EncodingRefused(f"Postgres would not return this {type_name(kind)} unchanged: {tree!r:.80}")


_IS_KEPT: Final[dict[type, Callable[[Any], bool]]] = {
    str: is_storable_text,
    int: lambda number: -(2**63) <= number < 2**64,
    float: lambda number: abs(number) < _INTEGER_FROM and (number != 0 or copysign(1, number) > 0),
    bool: lambda _: True,
    type(None): lambda _: True,
}


def _check_key(key: Any, of: type) -> None:
    if of is dict and (type(key) is not str or not is_storable_text(key)):
        raise EncodingRefused("a key must be a text without NUL and lone surrogates")


def _storable(tree: Any) -> Tree:
    if isinstance(tree, str):
        return storable_text(tree)
    if isinstance(tree, dict):
        return {storable_text(key): _storable(item) for key, item in tree.items()}
    return [_storable(item) for item in tree] if isinstance(tree, (list, tuple)) else safe_serialize(tree)
