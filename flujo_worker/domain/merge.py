"""Merge the changes of a fan-out's branches into one, three-way, in the order in which the branches were declared.

It must not see values as classes, or know in which order branches ended. Its time is proportional to the changes, and it copies only their
containers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from flujo_client.serial import Tree, canonical
from flujo_worker.domain.patch import Patch, apply, diff, empty_like, members, name_of, number, written

Change: TypeAlias = tuple[str, Patch]
Patches: TypeAlias = Sequence[tuple[str, Patch | None]]

_GROWTH: Final = frozenset({"add", "append", "members"})


class MergeConflict(Exception):
    """Two branches changed one place (`path`; empty for the whole) in incompatible ways. Their values are not shown: they may be secret."""

    def __init__(self, path: str, first: str, second: str) -> None:
        super().__init__(f"branches {first!r} and {second!r} both changed {path or 'the whole context'}")
        self.path = path
        self.first = first
        self.second = second


def merge(
    base: Tree,
    patches: Patches,
    *,
    strategy: str,
    fields: Mapping[str, Collection[str]] | None = None,
    last_wins: Collection[str] = (),
) -> Tree:
    """Return `base` with what all branches changed.

    Args:
        base: the context that every branch began with; None if there is none.
        patches: each branch's name and `diff(base, its context)`, in declared order.
        strategy: the rule for a field that several branches changed. `context_update`: integers add up, lists append in declared
            order, sets and mappings join, booleans OR, else it is a conflict unless all wrote the same. `error_on_conflict`: a
            conflict unless all wrote the same; mappings and models are compared field by field. `overwrite`: the last branch's whole field.
            `keep_first`: the first one's. `no_merge`: nothing is merged.
        fields: the top-level fields that a branch may merge; a branch that is not in it may merge all.
        last_wins: top-level fields in which the last branch's entry under each name wins, regardless of strategy and `fields`: the engine
            stores them, not the branches.

    Raises:
        MergeConflict: under `context_update` and `error_on_conflict`.
        ValueError: no such strategy.
    """
    if strategy == "no_merge":
        return base
    kept, theirs = _apart(patches, last_wins)
    return apply(apply(base, combine(theirs, strategy=strategy, fields=fields or {})), kept)


def combine(patches: Patches, *, strategy: str, fields: Mapping[str, Collection[str]]) -> Patch | None:
    """Make one patch of many, as `merge` says; None when nothing changed."""
    changes = _allowed(patches, fields)
    match strategy:
        case "context_update" | "error_on_conflict":
            return _joined(changes, "", adds=strategy == "context_update") if changes else None
        case "overwrite":
            return _picked(changes)
        case "keep_first":
            return _picked(changes[::-1])
        case _:
            raise ValueError(f"unknown merge strategy {strategy!r}")


def _apart(patches: Patches, names: Collection[str]) -> tuple[Patch | None, Patches]:
    """Take the fields out in which the last entry wins: what they become, and the patches without them."""
    if not names:
        return None, patches
    theirs: list[tuple[str, Patch | None]] = []
    taken: dict[tuple[str, str], list[Change]] = {}
    for branch, patch in patches:
        if patch is None or patch[0] != "fields":
            theirs.append((branch, patch))
            continue
        rest = {section: {k: v for k, v in inner.items() if k not in names} for section, inner in patch[1].items()}
        theirs.append((branch, ["fields", {section: inner for section, inner in rest.items() if inner}]))
        for section, inner in patch[1].items():
            for name in inner.keys() & set(names):
                taken.setdefault((section, name), []).append((branch, inner[name]))
    sections: dict[str, dict[str, Patch]] = {}
    for (section, name), changes in taken.items():
        picked = _picked(changes)
        if picked is not None:
            sections.setdefault(section, {})[name] = picked
    return (["fields", sections] if sections else None), theirs


def _allowed(patches: Patches, fields: Mapping[str, Collection[str]]) -> list[tuple[str, Patch]]:
    changes = []
    for branch, whole in patches:
        patch = _only(whole, fields[branch]) if whole and branch in fields else whole
        if patch:
            changes.append((branch, patch))
    return changes


def _only(patch: Patch, fields: Collection[str]) -> Patch | None:
    """Return the patch with only the allowed names; a merge of some fields must not replace the whole."""
    act, change = patch
    if act != "fields":
        return None
    names = {name_of(field) for field in fields}
    kept = {
        section: allowed
        for section, inner in change.items()
        if (allowed := {name: inner[name] for name in inner if name in names})
    }
    return ["fields", kept] if kept else None


# --- one of them wins ------------------------------------------------------------------------------------------------


def _picked(changes: list[Change]) -> Patch | None:
    """Let the last change of each name win."""
    if not changes or any(patch[0] != "fields" for _, patch in changes):
        return changes[-1][1] if changes else None
    sections: dict[str, dict[str, Patch]] = {}
    for _, (_, change) in changes:
        for section, inner in change.items():
            sections.setdefault(section, {}).update(inner)
    return ["fields", sections]


# --- all of them count -----------------------------------------------------------------------------------------------


def _joined(changes: list[Change], path: str, *, adds: bool) -> Patch:
    """Join what several branches did to one place; `adds` is whether growth adds up."""
    (first, patch), *others = changes
    if not others:
        return patch
    kind = _kind(patch, adds=adds)
    for second, other in others:
        if _kind(other, adds=adds) != kind:
            raise MergeConflict(path, first, second)
    act, made = patch[0], [change for _, (_, change) in changes]
    match kind[0]:
        case "fields":
            return ["fields", _joined_names(changes, path, adds=adds)]
        case "new":
            return ["new", _joined_new(changes, path, adds=adds)]
        case "or":
            return [act, any(made)]
        case "add":
            return ["add", written(sum(number(grown) for grown in made))]
        case "append":
            return ["append", list(chain.from_iterable(made))]
        case "members":
            return ["members", [_union(added for added, _ in made), _union(removed for _, removed in made)]]
        case _:
            return patch


def _kind(patch: Patch, *, adds: bool) -> tuple[str, bytes]:
    """Return a key that compatible changes of the same place share: those of the same kind, else only equal ones.

    A field that is new in several branches has no common base. Mappings, lists and sets then begin empty.
    """
    act, change = patch
    if act == "fields" or (adds and act in _GROWTH):
        return act, b""
    if act == "new" and (empty := empty_like(change)) is not None and (adds or empty == {}):
        return act, canonical(empty)
    if adds and type(change) is bool:
        return "or", b""
    return "same", canonical(patch)


def _joined_names(changes: list[Change], path: str, *, adds: bool) -> dict[str, dict[str, Patch]]:
    together: dict[str, dict[str, list[Change]]] = {}
    for branch, (_, sections) in changes:
        for section, patches in sections.items():
            names = together.setdefault(section, {})
            for name, patch in patches.items():
                names.setdefault(name, []).append((branch, patch))
    return {
        section: {name: _joined(each, _inside(path, name), adds=adds) for name, each in names.items()}
        for section, names in together.items()
    }


def _joined_new(changes: list[Change], path: str, *, adds: bool) -> Tree:
    empty = empty_like(changes[0][1][1])
    grown = [(branch, patch) for branch, (_, made) in changes if (patch := diff(empty, made))]
    return apply(empty, _joined(grown, path, adds=adds)) if grown else empty


def _union(groups: Iterable[list[Tree]]) -> list[Tree]:
    return list(members(chain.from_iterable(groups)).values())


def _inside(path: str, name: str) -> str:
    if name.isidentifier():
        return f"{path}.{name}" if path else name
    return f"{path}[{name.removeprefix('$') if name.startswith('$') else repr(name):.80}]"
