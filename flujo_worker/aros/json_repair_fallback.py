"""json-repair as the last resort of level 2, and the test that its value must pass.

It must not be believed: its value counts only if its scalars, in order, are the text without brackets, separators, quotes and
comments, its brackets are the text's own, nothing was missing where a value belongs, and no number became a string. In: a region; out: a value, or None.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.aros.extract import marks
from flujo_worker.aros.grammar import NO_TEXT, SUM
from flujo_worker.aros.scalars import REPAIR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_worker.aros.scalars import ParseBudget

try:
    import json_repair
except ImportError:
    json_repair = None  # type: ignore[assignment]

LONGEST: Final = 20_000
"""Characters: json-repair has been quadratic."""
_PUNCTUATION: Final = re.compile(r"[\s{}\[\](),:\"'“”„‘’]+")
_HOLE: Final = re.compile(
    SUM.pattern + r"|[\[{:,(]\s*[,:]|:\s*[}\])]|\.\.\.|…|\\|//|/\*|#|```|\b(?:NaN|Infinity|undefined)\b"
)

_LIKE_JSON: Final = re.compile(r"[,:{}\[\]]|\A\s*(?:-?[\d.]+|true|false|null|None)\s*\Z", re.IGNORECASE)
"""A string of these says that a separator was taken for text, or a number or a word for a string: only quotes allow that."""


def salvaged(text: str, budget: ParseBudget) -> Any:
    """Return the value that json-repair reads from `text` if nothing was lost or invented; None otherwise."""
    if json_repair is None or len(text) > LONGEST or _HOLE.search(text) or text.count('"') % 2:
        return None
    budget.spend(len(text))
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - any error means that there is no value
        return None
    return value if isinstance(value, dict | list) and _is_lossless(value, text, budget) else None


def _is_lossless(value: Any, text: str, budget: ParseBudget) -> bool:
    strings = (string for string in _strings(value) if string not in budget.words)
    doubtful = (string for string in strings if _LIKE_JSON.search(string) or NO_TEXT.fullmatch(string))
    if not all(_is_quoted(string, text) for string in doubtful):
        return False
    pieces = list(_pieces(value))
    brackets = [piece for piece, is_bracket in pieces if is_bracket]
    own = [mark for _, mark in marks(text, REPAIR, budget) if mark != ","]
    content = "".join(piece for piece, is_bracket in pieces if not is_bracket)
    return brackets == own and '"' not in content and _PUNCTUATION.sub("", content) == _PUNCTUATION.sub("", text)


def _is_quoted(string: str, text: str) -> bool:
    return any(f"{quote}{string}{quote}" in text for quote in "\"'")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _pieces(value: Any) -> Iterator[tuple[str, bool]]:
    if isinstance(value, dict):
        yield "{", True
        for key, member in value.items():
            yield str(key), False
            yield from _pieces(member)
        yield "}", True
    elif isinstance(value, list):
        yield "[", True
        for element in value:
            yield from _pieces(element)
        yield "]", True
    else:
        yield value if isinstance(value, str) else json.dumps(value), False
