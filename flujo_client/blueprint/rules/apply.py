"""Apply every rule to a document and to the documents inside it; find the rules of faults that the reader or the check found.

Pure, but for the imports that references name. It must not read files. In: a source and its document, with the contents of all files that
it names, or findings of the reader and the check, which have no rules. Out: findings with their rules and places.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flujo_client.blueprint.finding import Path
from flujo_client.blueprint.kind import KINDS
from flujo_client.blueprint.read import Source
from flujo_client.blueprint.rules import agents, flows, texts
from flujo_client.blueprint.rules.document_index import DocumentIndex, items_of
from flujo_client.blueprint.rules.model import fields_of
from flujo_client.blueprint.rules.table import RULES
from flujo_client.contract.validation import Finding
from flujo_client.pipeline.check import PipelineFinding as Check
from flujo_client.recipes.tree_search import WITHIN

_MODULES: Final = (agents, texts, flows)


def apply_rules(source: Source, document: Any, *, allowed: Sequence[str], is_part: bool = False) -> Iterator[Finding]:
    """Yield the findings of all rules about a document, with the places of its source.

    A context's model may be under the allowed import prefixes. With `is_part`, the document is imported, so that its context may come from the
    importing blueprint.
    """
    for doc in _documents(document, (), source.data, tuple(allowed), is_part=is_part):
        found = (each for module in _MODULES for each in module.rules(doc))
        for each in (*found, *texts.disabled_filters(doc, _enabled_filters)):
            yield source.finding(
                each.rule,
                each.path,
                each.message,
                severity=each.severity or RULES[each.rule].severity,
                allowed=each.allowed,
                nearest=each.nearest,
            )


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
    imports, here = document.get("imports"), written.get("imports")
    if not isinstance(imports, Mapping) or not isinstance(here, Mapping):
        return
    for name, given in here.items():
        if isinstance(given, Mapping):
            yield from _documents(imports[name], (*path, "imports", name), given, allowed, is_part=True)


_BODIES: Final = {"wrapped_step": "body"}
"""Keys that are called otherwise in a plan."""


class Places:
    """The places of a pipeline's steps in the document it was built from."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._known: dict[Path, tuple[dict[Any, Path], dict[str, Path]]] = {}

    def of(self, step: str) -> Path:
        """Find the place of the step, or of the innermost one around it that is in the document itself.

        `step` has alternating names of steps and keys of their bodies, separated by `/`; if empty, the place is the document's own.
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
        row = [((*path, key), each) for path, value in row for key, each in items_of(value)]


_KEYS: Final = (
    ("Y-MISSING", r"needs one of uses, agent", r"", "V-A1"),
    ("Y-REFERENCE", r"`imports`", r"\buses$", "V-I1"),
    ("Y-REFERENCE", r"", r"\b(uses|(agent|router_agent|planner|registry\.[^.]+|proposer|evaluator)(\.id)?)$", "V-A2"),
    ("Y-REFERENCE|Y-FILE", r"", r"^imports\.[^.]+$|\.imports\.[^.]+$", "V-I1"),
    ("Y-IMPORT", r"", r"", "V-I3"),
    ("Y-FORMULA", r"", r"\b(condition_expression|exit_expression|when)$", "V-EX1"),
    ("Y-FORMULA|Y-PROMPT", r"", r"", "V-T1"),
    ("Y-VALUE", r"JSON", r"\b(input_schema|output_schema)$", "V-S1"),
    ("Y-PROCESSING", r"is not (a )?JSON", r"\bschema$", "V-S1"),
)
"""(what it was found as, what its message says, how its key ends, the rule)."""

_OPTIONS: Final = (
    (r"it has no agent", "V-A1"),
    (r"durable: ", "V-D1"),
    (r"model '", "V-A6"),
    (r"parameter `", "V-A10"),
    (r"its input is what step ", "V-S4"),
    (r"its output type ", "V-S5"),
    (r"(its agent|agent) ", "V-A2"),
    (r"(sink_to|updates_context|iterable_input|gather)\b|conversation stores |the log of its turns", "V-C1"),
    (r"(conversation|history_\w+|\w+_turn_sources?|named_steps)\b", "V-L2"),
    (r"(outputs)\b|(input_to)\b", "V-I2"),
    (r".* expects the context ", "V-I6"),
    (r"(field_mapping|context_include_keys)\b", "V-P2"),
    (r"(input): |(message): ", "V-T1"),
    (r"(start_state|end_states|transition|end state|state|max_visits)\b|states\b", "V-SM1"),
    (r"it asks a person and is inside a cached step", "HITL-NESTED-001"),
    (r".* contains itself: ", "V-F1"),
    (r"(input_schema|processing\.schema) .*JSON", "V-S1"),
)
"""The beginnings of the check's sentences, and their rules; the first word is the option that they are about."""


def named(finding: Finding) -> Finding:
    """Return a finding of the reader with its rule."""
    for found_as, says, ends, rule in _KEYS:
        if re.fullmatch(found_as, finding.rule) and re.search(says, finding.message) and re.search(ends, finding.key):
            return replace(finding, rule=rule)
    return finding if finding.rule in RULES else replace(finding, rule="Y-VALUE")


def _in_place(source: Source, places: Places, found: Check) -> Finding:
    """Return a finding of the pipeline's check with its rule, at the option that it is about."""
    path = places.of(found.path or "")
    option = re.match(r"\w*", found.text)
    value = value_at(source.data, path)
    tables = [(each.own_table,) for each in KINDS.values() if each.own_table is not None]
    for below in ((), ("config",), *tables):
        held = value_at(value, below)
        if option is not None and isinstance(held, Mapping) and option[0] in held:
            path = (*path, *below, option[0])
            break
    is_there = isinstance(value, Mapping) and (found.path or "").rpartition("/")[2] in (
        value.get("name"),
        value.get("step"),
    )
    return source.finding(rule_of(found.text), path, found.text if is_there or not found.path else str(found))


def rule_of(sentence: str) -> str:
    """Return the rule for a sentence of the pipeline's check."""
    return next((rule for begins, rule in _OPTIONS if re.match(begins, sentence)), "Y-PIPELINE")


def placed(found: Sequence[Check], source: Source, reported: Sequence[Finding]) -> list[Finding]:
    """Return findings of the pipeline's check with rule and place, except those that rules have already reported at a more exact place."""
    places, both = Places(source.data), ("V-SM1", "V-C1")
    keys = {(each.rule, key) for each in reported for key in (each.key, each.key.rpartition(".transitions[")[0])}
    named = [_in_place(source, places, each) for each in found]
    return [each for each in named if each.rule not in both or (each.rule, each.key) not in keys]
