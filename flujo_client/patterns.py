"""Compile regular expressions that have possessive groups, such as `(?:a|b)*+`, correctly under every Python.

Python before 3.11.5 matches such a group wrongly where something in it can backtrack (gh-106052). There it becomes an atomic group, which
means the same: `(?>(?:a|b)*)`.
"""

import re
import sys
from typing import Final

_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)(?:[*+?]|\{\d*,?\d*\})\+|\)|[^\\\[()]+", re.DOTALL)
IS_RIGHT: Final = sys.version_info >= (3, 11, 5)


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern, as `re.compile` does."""
    return re.compile(pattern if IS_RIGHT else atomic(pattern), flags)


def atomic(pattern: str) -> str:
    """Write the possessive groups of a pattern as atomic ones."""
    parts: list[str] = []
    opened: list[int] = []
    for part in _TOKEN.findall(pattern):
        if part == "(":
            opened.append(len(parts))
        elif part[0] == ")":
            start = opened.pop()
            if len(part) > 1:
                parts[start] = f"(?>{parts[start]}"
                part = f"{part[:-1]})"  # noqa: PLW2901 - what is written instead
        parts.append(part)
    return "".join(parts)
