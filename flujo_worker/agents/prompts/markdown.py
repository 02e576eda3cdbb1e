"""Write plain data as text that cannot leave its place: JSON for a fenced block, Markdown lists, lines and paragraphs.

Data comes from models and strangers: no content may end the block that it is in, or begin another one. Nothing is lost: a text that cannot be
shown unchanged is shown as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

EMPTY: Final = "*(empty)*"

_FENCES: Final = re.compile(r"`{3,}|~{3,}")
_BREAKS: Final = str.maketrans({char: f"\\u{ord(char):04x}" for char in "\x7f\x85\u2028\u2029"})
"""Characters that some readers treat as the end of a line, and JSON does not escape."""
_STARTS_A_BLOCK: Final = re.compile(r"[-+*>#|\[]|\d{1,9}[.)]|`{3}|~{3}|<")
_SECTION: Final = re.compile(r"(?m)^( {0,3})(#{1,6}(?=\s|$)|`{3,}|~{3,}|(?:[-*_=][ \t]*){3,}$|-(?=\s*$)|=(?=\s*$))")


def as_json(value: Any, indent: int | None = 2) -> str:
    """Write JSON that cannot end a fenced block: rows of three backticks or tildes, which occur only in texts, are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_made).translate(_BREAKS)
    return _FENCES.sub(lambda fence: f"\\u{ord(fence[0][0]):04x}" * len(fence[0]), text)


def _made(value: Any) -> Any:
    """Write what a template made itself, such as what `map` gives, as the list that it is."""
    return list(value) if isinstance(value, Iterable) else str(value)


def line(value: Any) -> str:
    """Write a value in one line: a text as it is if it is one line, anything else as JSON."""
    if not isinstance(value, str):
        return as_json(value, None)
    is_plain = value == value.strip() != "" and len(value.splitlines()) == 1 and value.isprintable()
    return value if is_plain else as_json(value, None)


def prose(value: Any) -> str:
    """Write a text of several lines; its headings, rules and fences are escaped as in Markdown."""
    text = "\n".join(value.strip().splitlines()) if isinstance(value, str) else line(value)
    return _SECTION.sub(r"\1\\\2", text)


def nested_markdown(value: Any) -> str:
    """Write plain data as a nested list.

    A mapping's entries are `- **key**: value`; entries that hold others indent them by two spaces; an item of a list that holds others is
    `- [0]:`. A text of several lines, or one that would begin a list or a heading, is written as JSON.
    """
    return "\n".join(_bullets(value, 0)) if _is_nested(value) or not isinstance(value, dict | list) else EMPTY


def _bullets(value: Any, depth: int) -> Iterator[str]:
    before, is_mapping = "  " * depth + "- ", isinstance(value, dict)
    if not isinstance(value, dict | list):
        yield before + _item(value)
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        named = f"**{line(key).replace('*', chr(92) + '*')}**:" if is_mapping else f"[{key}]:"
        if _is_nested(each):
            yield before + named
            yield from _bullets(each, depth + 1)
        elif is_mapping:
            yield f"{before}{named} {EMPTY if isinstance(each, dict | list) else line(each)}"
        else:
            yield before + _item(each)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _item(value: Any) -> str:
    if isinstance(value, dict | list):
        return EMPTY
    shown = line(value)
    return as_json(value, None) if isinstance(value, str) and _STARTS_A_BLOCK.match(shown) else shown
