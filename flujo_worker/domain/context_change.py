"""Find what changed in a context model since contexts were written with it, and whether a stored context is affected. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from flujo_client.frozen import frozen
from flujo_client.pipeline.context_info import REQUIRED, SCHEMA, TYPE, Fields

_MODEL: Final = "model"


@frozen
class ContextChange:
    """Fields that a context may have and the model no longer has, or has otherwise: names, each with its former types."""

    now: Fields
    removed: Mapping[str, frozenset[str]]
    retyped: Mapping[str, frozenset[str]]
    """Fields that had another type."""
    required: frozenset[str]
    """New fields without a default."""
    keeps_extra: bool = False
    """The model retains fields that it does not declare."""
    added: frozenset[str] = frozenset()
    """New fields with a default."""
    models: frozenset[str] = frozenset()
    """The names of other models that the pipeline had instead."""

    def __bool__(self) -> bool:
        """Whether a context may not fit."""
        return bool(self.removed or self.retyped or self.required or self.models)

    @property
    def has_history(self) -> bool:
        """Return whether the model ever had other fields."""
        return bool(self or self.added)

    def misfits(self, tree: Any, fits: Mapping[str, bool]) -> Iterator[str]:
        """Yield why a context cannot be read; nothing for one that was written with unchanged fields.

        `fits`: whether what is stored for a field of another type is of the present one.
        """
        sent = fields_of(tree)
        for name in sent:
            if name not in self.now and not self.keeps_extra:
                yield f"field '{name}' was removed"
            elif name in self.retyped and not fits.get(name, True):
                was = " or ".join(sorted(self.retyped[name]))
                yield f"field '{name}' was {was} and is {self.now[name][TYPE]} now"
        yield from (f"field '{name}' was added without a default" for name in sorted(self.required - sent.keys()))


def from_another(change: ContextChange) -> ContextChange:
    """Return the possible differences in a context of another model: all of its fields."""
    retyped = dict.fromkeys(change.now, frozenset({"of another type"}))
    required = frozenset(name for name, field in change.now.items() if field[REQUIRED])
    return replace(change, retyped=retyped, required=required)


def change_of(now: Fields, before: Iterable[Fields], *, keeps_extra: bool) -> ContextChange:
    """Compare the fields that a model has with all those that it had."""
    removed: dict[str, frozenset[str]] = {}
    retyped: dict[str, frozenset[str]] = {}
    new: set[str] = set()
    for old in before:
        for name, field in old.items():
            if name not in now:
                removed[name] = removed.get(name, frozenset()) | {field[TYPE]}
            elif field[SCHEMA] != now[name][SCHEMA]:
                retyped[name] = retyped.get(name, frozenset()) | {field[TYPE]}
        new |= now.keys() - old.keys()
    required = frozenset(name for name in new if now[name][REQUIRED])
    return ContextChange(now, removed, retyped, required, keeps_extra, frozenset(new) - required)


def fields_of(tree: Any) -> Mapping[str, Any]:
    """Return the stored fields of a model, extra ones too, each as a tree."""
    sections = [tree.get("x"), tree.get("v")] if isinstance(tree, dict) else []
    return {name: each for fields in sections if isinstance(fields, dict) for name, each in fields.items()}


def is_of(tree: Any, *models: str) -> bool:
    """Return whether a tree is one of these models, by its reference."""
    return isinstance(tree, dict) and tree.get("$") == _MODEL and tree.get("c") in models
