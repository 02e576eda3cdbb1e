"""Write findings about a blueprint: paths, values and suggestions as text, and the one `BlueprintError` that lists them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from flujo_client.contract.suggestions import closest_match
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintError

Path: TypeAlias = tuple[str | int | bool, ...]
"""The path of a value in a document: keys and indices from its top."""

_SHOWN = 60
_MAX_FINDINGS_SHOWN = 100
"""Findings that an error's text lists; all of them are on the error."""


class Mark(NamedTuple):
    """A place in a text; lines and columns count from 1."""

    line: int
    column: int


def written(path: Path) -> str:
    """Write a path as users read it: `steps[2].config.timeout_s`."""
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool):
            text += f"[{part}]"
        else:
            text += f".{shown(part)}" if text else shown(part)
    return text


def shown(value: Any) -> str:
    """Show a value in a message: in one line, and shortened."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def nearest(given: Any, known: Iterable[Any]) -> str | None:
    """Find the known word that was likely meant; keys of a document may be numbers, too."""
    return closest_match(str(given), map(str, known))


def meant(given: Any, known: Collection[Any], intro: str = "it has") -> tuple[str | None, str | None]:
    """Return the hints about an unknown word: what is allowed, or the known word that was likely meant."""
    near = nearest(given, known)
    return (None, near) if near else (f"{intro} {', '.join(map(shown, list(known)[:20])) or 'none'}", None)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Put findings in the order of their places."""

    def place(each: Finding) -> tuple[str, int, int, str, str, str]:
        return each.file, each.line or 0, each.column or 0, each.key, each.rule, each.message

    return tuple(sorted(findings, key=place))


def refuse(name: str, findings: Sequence[Finding], **rest: Any) -> BlueprintError:
    """Return the error that lists all findings that refuse a blueprint, in the order of their places."""
    wrong = in_order(each for each in findings if each.severity == "error")
    more = [f"and {len(wrong) - _MAX_FINDINGS_SHOWN} more"] if len(wrong) > _MAX_FINDINGS_SHOWN else []
    messages = [*map(str, wrong[:_MAX_FINDINGS_SHOWN]), *more]
    return BlueprintError(f"blueprint {name} cannot be used:", findings=tuple(wrong), lines=messages, **rest)
