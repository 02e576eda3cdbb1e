"""Compute the change between two trees as a tree, and apply it.

Trees are what `flujo_client.serial.encode` gives. It must not decode them: a context's class need not be importable here, and no validator
may interfere. Arguments are never changed; results share the unchanged parts. A patch holds the changed places alone, as `[act, change]`:

    put      the tree that is there now         new      the same, where nothing stood before
    gone     nothing is there any more          add      how much an integer grew
    append   what a list has more at its end     members  what a set has more, what it has no more
    fields   per section, the patch of each name that changed

A record is a value with names inside: a mapping, a counter, a model, a dataclass. Its names are in sections: `v` the keys or fields; for a model
also `x` its extra fields and `s` those that were set. A key that is not plain text is named by `$` and its JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from flujo_client.serial import Tree, canonical, dumps, loads

# A list of two, for JSON knows no tuples; recursive aliases would make every caller cast.
Patch: TypeAlias = list[Any]
Sections: TypeAlias = dict[str, dict[str, Tree]]

_TAG: Final = "$"
_MAP: Final = "map"
_CLASSES: Final = frozenset({"model", "dataclass"})
_COUNTS: Final = frozenset({"counter", "defaultdict"})
_SETS: Final = frozenset({"set", "frozenset"})
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**64 - 1


def diff(before: Tree, after: Tree) -> Patch | None:
    """Return the patch from `before` to `after`; None if they are equal.

    It has the increment of integers, the appended items of lists that only grew at their end, the added and removed members of sets, and a
    patch for each name of records of one class; any other difference is a replacement. Booleans are not integers, and 1 is not 1.0. The
    order of a mapping's keys is not a difference. Its time is proportional to both sizes.
    """
    if before is after:
        return None
    shape = _shape(before)
    if shape is not None and shape == _shape(after):
        return _diff_record(before, after)
    if type(before) is str and type(after) is str:
        return None if before == after else ["put", after]
    if is_integer(before) and is_integer(after):
        grown = number(after) - number(before)
        return ["add", written(grown)] if grown else None
    if type(before) is list and type(after) is list:
        return _diff_list(before, after)
    if (tag := _set_tag(before)) and tag == _set_tag(after):
        return _diff_set(before, after)
    return None if canonical(before) == canonical(after) else ["put", after]


def apply(base: Tree, patch: Patch | None) -> Tree:
    """Return `base`, which may be another tree of the same shape where the patch has changes, with them: `apply(a, diff(a, b))` equals `b`."""
    if patch is None:
        return base
    act, change = patch
    match act:
        case "add":
            return written(number(base) + number(change))
        case "append":
            return [*base, *change]
        case "members":
            return _apply_members(base, *change)
        case "fields":
            return _apply_fields(base, change)
        case _:
            return change


# --- records ---------------------------------------------------------------------------------------------------------


def name_of(key: Tree) -> str:
    """Name a mapping's key: plain text names itself, anything else is marked by the tag's sign."""
    if type(key) is str and not key.startswith(_TAG):
        return key
    return _TAG + canonical(key).decode()


def _key_of(name: str) -> Tree:
    return loads(name[1:].encode()) if name.startswith(_TAG) else name


def same_record(one: Tree, other: Tree) -> bool:
    """Return whether both have names inside, and are of the same class."""
    shape = _shape(one)
    return shape is not None and shape == _shape(other)


def _shape(tree: Tree) -> str | None:
    if type(tree) is not dict:
        return None
    tag = tree.get(_TAG, _MAP)
    if tag in _CLASSES or tag in _COUNTS:
        return f"{tag} {tree.get('c')}"
    return _MAP if tag == _MAP else None


def opened(record: Tree) -> Sections:
    """Return the names of a record by section. The sections are for reading: they may be the record's own."""
    tag = record.get(_TAG, _MAP)
    if tag == _MAP:
        return {"v": _named(record)}
    fields = _named(record["v"])
    if tag != "model":
        return {"v": fields}
    were_set = map(name_of, record["s"]) if "s" in record else fields
    return {"v": fields, "x": _named(record.get("x", {})), "s": dict.fromkeys(were_set, True)}


def closed(record: Tree, sections: Sections) -> Tree:
    """Return a record of the same class with these names: the inverse of `opened`, written as `encode` writes it."""
    tag = record.get(_TAG, _MAP)
    if tag == _MAP:
        return _mapping(sections["v"])
    out = {**{name: record[name] for name in (_TAG, "c") if name in record}, "v": _mapping(sections["v"])}
    if "s" in sections and sections["s"].keys() != sections["v"].keys():
        out["s"] = [_key_of(name) for name in sorted(sections["s"])]
    if sections.get("x"):
        out["x"] = _mapping(sections["x"])
    return out


def _named(mapping: Tree) -> dict[str, Tree]:
    if _TAG in mapping:
        return {name_of(key): item for key, item in mapping["v"]}
    return mapping if _all_plain(mapping) else {name_of(key): item for key, item in mapping.items()}


def _mapping(named: dict[str, Tree]) -> Tree:
    if _all_plain(named):
        return named
    pairs = [[_key_of(name), item] for name, item in named.items()]
    if all(type(key) is str and key != _TAG for key, _ in pairs):
        return {key: item for key, item in pairs}  # noqa: C416  # mypy does not see lists as pairs
    return {_TAG: _MAP, "v": pairs}


def _all_plain(names: dict[str, Tree]) -> bool:
    return not any(name.startswith(_TAG) for name in names)


def _diff_record(before: Tree, after: Tree) -> Patch | None:
    old, new = opened(before), opened(after)
    changes = {section: patches for section in old if (patches := _diff_names(old[section], new[section]))}
    return ["fields", changes] if changes else None


def _diff_names(old: dict[str, Tree], new: dict[str, Tree]) -> dict[str, Patch]:
    patches: dict[str, Patch] = {}
    for name, item in new.items():
        patch = diff(old[name], item) if name in old else ["new", item]
        if patch is not None:
            patches[name] = patch
    patches.update((name, ["gone", None]) for name in old if name not in new)
    return patches


def _apply_fields(base: Tree, changes: dict[str, dict[str, Patch]]) -> Tree:
    sections = opened(base)
    for section, patches in changes.items():
        names = sections[section] = dict(sections[section])
        for name, patch in patches.items():
            if patch[0] == "gone":
                names.pop(name, None)
            else:
                names[name] = apply(names.get(name), patch)
    return closed(base, sections)


# --- lists, sets, integers -------------------------------------------------------------------------------------------


def _diff_list(before: list[Tree], after: list[Tree]) -> Patch | None:
    kept = len(before)
    if canonical(before) != canonical(after[:kept]):
        return ["put", after]
    return ["append", after[kept:]] if len(after) > kept else None


def _set_tag(tree: Tree) -> str | None:
    tag = tree.get(_TAG) if type(tree) is dict else None
    return tag if tag in _SETS else None


def _diff_set(before: Tree, after: Tree) -> Patch | None:
    old, new = members(before["v"]), members(after["v"])
    added = [item for key, item in new.items() if key not in old]
    removed = [item for key, item in old.items() if key not in new]
    return ["members", [added, removed]] if added or removed else None


def _apply_members(base: Tree, added: list[Tree], removed: list[Tree]) -> Tree:
    kept = members([*base["v"], *added])
    for key in members(removed):
        kept.pop(key, None)
    return {**base, "v": [kept[key] for key in sorted(kept)]}


def members(items: Iterable[Tree]) -> dict[bytes, Tree]:
    """Return trees by their JSON, each once."""
    return {dumps(item): item for item in items}


def empty_like(tree: Tree) -> Tree | None:
    """Return the empty mapping, list or set that `tree` could have grown from; None for what does not grow."""
    if type(tree) is list:
        return []
    if tag := _set_tag(tree):
        return {_TAG: tag, "v": []}
    if type(tree) is dict and tree.get(_TAG) in _COUNTS:
        return {**tree, "v": {}}
    return {} if _shape(tree) == _MAP else None


def is_integer(tree: Tree) -> bool:
    """Return whether a tree is an integer, of any size; a boolean is none."""
    return type(tree) is int or (type(tree) is dict and tree.get(_TAG) == "int")


def number(tree: Tree) -> int:
    """Read an integer's tree."""
    return int(tree["v"], 16) if type(tree) is dict else int(tree)


def written(integer: int) -> Tree:
    """Write an integer as `encode` does: JSON takes 64 bits, larger ones are tagged."""
    return integer if _SMALLEST <= integer <= _LARGEST else {_TAG: "int", "v": hex(integer)}
