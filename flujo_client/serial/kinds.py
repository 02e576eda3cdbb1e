"""What a type is called and whether it is a mock: asked of the type alone, never of the value.

A mock answers to every attribute, so only its class can tell (C-21, U-28); the mock library is never imported.
"""

from __future__ import annotations

_MOCKS = frozenset({"unittest.mock", "mock", "mock.mock"})


def is_mock(kind: type) -> bool:
    """Tell whether a type comes from the mock library, or descends from one that does."""
    return any(ancestor.__module__ in _MOCKS for ancestor in kind.__mro__)


def type_name(kind: type) -> str:
    """Name a type for people: `datetime.date`, but `int`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
