"""Apply every rule to a document and to the documents inside it; find the rules and places of the check's findings.

Pure, but for the imports that references name. It must not read files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias

from flujo_client.blueprint.finding import Path
from flujo_client.blueprint.kind import KINDS
from flujo_client.blueprint.read import Source
from flujo_client.blueprint.rules import agents, flows, texts
from flujo_client.blueprint.rules.document_index import DocumentIndex, table_of, value_at, walk
from flujo_client.blueprint.rules.model import fields_of
from flujo_client.blueprint.rules.table import RULES
from flujo_client.contract.validation import Finding
from flujo_client.pipeline.check import PipelineFinding as Check
from flujo_client.recipes.tree_search import WITHIN

_MODULES: Final = (agents, texts, flows)


def apply_rules(source: Source, document: Any, *, allowed: Sequence[str], is_part: bool = False) -> Iterator[Finding]:
    """Yield the findings of all rules about a document. With `is_part` it is imported, so that its context may come from the importing one."""
    for doc in _documents(document, (), source.data, tuple(allowed), is_part=is_part):
        found = (each for module in _MODULES for each in module.rules(doc))
        for each in (*found, *texts.disabled_filters(doc, _enabled_filters)):
            yield source.finding(**each._asdict() | {"severity": each.severity or RULES[each.rule].severity})


def _enabled_filters() -> Collection[str]:
    from flujo_client.config.manager import ConfigManager

    return ConfigManager().settings().validation.enabled_template_filters


def _documents(
    document: Any, path: Path, written: Any, allowed: tuple[str, ...], *, is_part: bool
) -> Iterator[DocumentIndex]:
    """Return a document and those written out under its `imports`; what an import reads from a file is checked there."""
    if not isinstance(document, Mapping) or not isinstance(written, Mapping):
        return
    yield DocumentIndex(document, path, fields_of(document, allowed), is_part)
    imports = table_of(document, "imports")
    for name, given in table_of(written, "imports").items():
        if name in imports:
            yield from _documents(imports[name], (*path, "imports", name), given, allowed, is_part=True)


_BODIES: Final = {"wrapped_step": "body"}
"""Keys that are called otherwise in a plan."""
_Below: TypeAlias = Callable[[Path], tuple[dict[Any, Path], dict[str, Path]]]


def _place_of(step: str, below: _Below) -> Path:
    """Find the place of the innermost step of a path in the plan, of alternating names and bodies, that is in the document itself."""
    for who, within in WITHIN.items():
        step = step.replace(f"/{within}/", f"/{who}/")
    place: Path = ("steps",) if step else ()
    for index, part in enumerate(step.split("/") if step else ()):
        names, keys = below(place)
        found = keys.get(part.lower()) if index % 2 else names.get(part)
        if found is None:
            break
        place = found
    return place


def _names_below(document: Any, place: Path) -> tuple[dict[Any, Path], dict[str, Path]]:
    """Return the nearest places at and below one: of mappings by their names, and of all values by their keys."""
    names: dict[Any, Path] = {}
    keys: dict[str, Path] = {}
    for path, value in walk(value_at(document, place), place):
        key = str(path[-1]).lower()
        keys.setdefault(_BODIES.get(key, key), path)
        for name in (value.get("name"), value.get("step")) if isinstance(value, Mapping) else ():
            if isinstance(name, str):
                names.setdefault(name, path)
    return names, keys


def _in_place(source: Source, names_below: _Below, found: Check) -> Finding:
    """Return a finding of the pipeline's check with its rule, at the option that it is about."""
    path = _place_of(found.path or "", names_below)
    option = re.match(r"\w*", found.text)
    value = value_at(source.data, path)
    tables = [(each.own_table,) for each in KINDS.values() if each.own_table is not None]
    for below in ((), ("config",), *tables):
        held = value_at(value, below)
        if option is not None and isinstance(held, Mapping) and option[0] in held:
            path = (*path, *below, option[0])
            break
    names = (value.get("name"), value.get("step")) if isinstance(value, Mapping) else ()
    is_there = (found.path or "").rpartition("/")[2] in names
    return source.finding(found.rule, path, found.text if is_there or not found.path else str(found))


def placed(found: Sequence[Check], source: Source, reported: Sequence[Finding]) -> list[Finding]:
    """Return findings of the pipeline's check with rule and place, except those that rules have already reported at a more exact place."""
    below, both = cache(partial(_names_below, source.data)), ("V-SM1", "V-C1")
    keys = {(each.rule, key) for each in reported for key in (each.key, each.key.rpartition(".transitions[")[0])}
    named = [_in_place(source, below, each) for each in found]
    return [each for each in named if each.rule not in both or (each.rule, each.key) not in keys]
