"""Map the steps of a pipeline to the document it was built from, by their paths in the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flujo_client.blueprint.finding import Path
from flujo_client.recipes.tree_search import WITHIN

_BODIES: Final = {"wrapped_step": "body"}
"""Keys that are called otherwise in a plan."""


class Places:
    """The places of a pipeline's steps in the document it was built from."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._known: dict[Path, tuple[dict[Any, Path], dict[str, Path]]] = {}

    def of(self, step: str) -> Path:
        """Find the place of the step, or of the innermost one around it that is in the document itself.

        Args:
            step: names of steps and keys of their bodies by turns, `/` between them; the document's own place when empty.
        """
        for who, within in WITHIN.items():
            step = step.replace(f"/{within}/", f"/{who}/")
        place: Path = ("steps",) if step else ()
        for index, part in enumerate(step.split("/") if step else ()):
            names, keys = self._below(place)
            found = keys.get(part.lower()) if index % 2 else names.get(part)
            if found is None:
                break
            place = found
        return place

    def _below(self, place: Path) -> tuple[dict[Any, Path], dict[str, Path]]:
        """Return the nearest places at and below one: of mappings by their names, and of all values by their keys."""
        if place not in self._known:
            names: dict[Any, Path] = {}
            keys: dict[str, Path] = {}
            for path, value in _inside(self._document, place):
                key = str(path[-1]).lower()
                keys.setdefault(_BODIES.get(key, key), path)
                for name in (value.get("name"), value.get("step")) if isinstance(value, Mapping) else ():
                    if isinstance(name, str):
                        names.setdefault(name, path)
            self._known[place] = names, keys
        return self._known[place]


def value_at(document: Any, path: Path) -> Any:
    """Return what is at a place; None if nothing does."""
    for part in path:
        if isinstance(document, list):
            document = document[part] if isinstance(part, int) and part < len(document) else None
        else:
            document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _inside(document: Any, top: Path) -> Iterator[tuple[Path, Any]]:
    """Return what is at a place and under it, the nearest first."""
    value = document
    for part in top:
        value = value[part]
    row = [(top, value)]
    while row:
        yield from row
        row = [((*path, key), each) for path, value in row for key, each in _items(value)]


def _items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
