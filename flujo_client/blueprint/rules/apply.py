"""Apply every rule to a document, and to those that are written out in it. Pure, but for the imports that references name.

It must not read files. In: a source and its document, with everything in it that it names by file; out: findings with their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.rules import agents, flows, schemas, texts
from flujo_client.blueprint.rules.document_index import DocumentIndex
from flujo_client.blueprint.rules.model import fields_of
from flujo_client.blueprint.rules.table import RULES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from flujo_client.blueprint.finding import Path
    from flujo_client.blueprint.read import Source
    from flujo_client.contract.validation import Finding

_MODULES: Final = (agents, schemas, texts, flows)


def apply_rules(source: Source, document: Any, *, allowed: Sequence[str], is_part: bool = False) -> Iterator[Finding]:
    """Yield the findings of all rules.

    Args:
        source: has the places of findings.
        document: the blueprint to check.
        allowed: import prefixes that a context's model may be under.
        is_part: it is imported, so that its context may come from the importing blueprint.
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
