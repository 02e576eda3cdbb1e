"""Where a step of a pipeline stands in the document it was built from, by its path in the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flujo_client.blueprint.finding import Path


def where(document: Mapping[str, Any], step: str) -> Path:
    """Find the place of the step, or of the innermost one around it that stands in the document itself.

    Args:
        document: what was built.
        step: names of steps and keys of their bodies by turns, `/` between them; the document's own place when empty.
    """
    place: Path = ("steps",) if step else ()
    for index, part in enumerate(step.split("/") if step else ()):
        found = next((path for path, value in _inside(document, place) if _is(part, path, value, index)), None)
        if found is None:
            break
        place = found
    return place


def value_at(document: Any, path: Path) -> Any:
    """Give what stands at a place; None if nothing does."""
    for part in path:
        if isinstance(document, list):
            document = document[part] if isinstance(part, int) and part < len(document) else None
        else:
            document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _is(part: str, path: Path, value: Any, index: int) -> bool:
    """Names of steps have even places in a path, keys of their bodies odd ones."""
    if index % 2:
        return str(path[-1]).lower() == part.lower()
    return isinstance(value, Mapping) and part in (value.get("name"), value.get("step"))


def _inside(document: Any, top: Path) -> Iterator[tuple[Path, Any]]:
    """Give what stands at a place and under it, the nearest first."""
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
