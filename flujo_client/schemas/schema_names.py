"""The names that the parts of a JSON Schema have for references. Pure."""

from __future__ import annotations

from typing import Any, Final

_NAMES: Final = frozenset({"id", "$id", "$schema"})
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})


def without_names(part: Any) -> Any:
    """Leave out the names of a schema and its parts, and the drafts that they name: a pointer then leads from the root to any part."""
    if isinstance(part, list):
        return [without_names(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: each if key in _VALUES else without_names(each)
        for key, each in part.items()
        if not (key in _NAMES and isinstance(each, str))
    }
