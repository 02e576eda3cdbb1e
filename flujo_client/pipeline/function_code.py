"""The parameters of a function, and the names that its bytecode reads and changes; functions without bytecode show neither."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

_CHANGING: Final = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)


def signature_of(function: Any, **options: Any) -> inspect.Signature | None:
    """Return the signature of a function; None for a compiled one, which may hide its parameters."""
    try:
        return inspect.signature(function, **options)
    except (TypeError, ValueError):
        return None


def can_call(signature: inspect.Signature, *by_place: Any, **by_name: Any) -> bool:
    """Return whether a function with this signature takes these arguments."""
    try:
        signature.bind(*by_place, **by_name)
    except TypeError:
        return False
    return True


def names_in(function: Any) -> set[str]:
    """Return the globals, attributes and imports that a function's code names, with those of functions inside it."""
    return {name for code in _codes(function) for name in (*code.co_names, *code.co_freevars)}


def changes_of_first(function: Any, attribute: str) -> bool:
    """Return whether code assigns to what is under an attribute of a function's first parameter, or calls a method there that changes it."""
    found = (each for each in paths_of_first(function) if each[0][0] == attribute and len(each[0]) > 1)
    return any(is_stored or path[-1] in _CHANGING for path, is_stored in found)


def paths_of_first(function: Any) -> Iterator[tuple[list[str], bool]]:
    """Yield each dotted path that begins at the first parameter, and whether it is assigned to."""
    for code in [each for each in _codes(function) if each.co_argcount][:1]:
        first, is_stored = code.co_varnames[0], False
        path: list[str] = []
        for step in dis.get_instructions(code):
            if path and step.opname in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
                path.append(str(step.argval))
                is_stored = step.opname == "STORE_ATTR"
                continue
            if len(path) > 1:
                yield path[1:], is_stored or step.opname == "STORE_SUBSCR"
            path = [first] if step.opname.startswith("LOAD_FAST") and step.argval == first else []


def _codes(function: Any) -> Iterator[CodeType]:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    row = [code] if isinstance(code, CodeType) else []
    while row:
        each = row.pop()
        yield each
        row += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
