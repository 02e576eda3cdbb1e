"""Takes a model's thinking out of its answer (rule 4).

It must not touch a tag inside a JSON string: that is text. In: the text; out: the text without what is between closed tags, before a
closing tag that nobody opened, and after an opening tag that nobody closed.
"""

from __future__ import annotations

import re
from typing import Final

from flujo_worker.aros.lex import opens_string, string_end

_NAMES: Final = "think|thinking|reasoning|reflection|scratchpad"
_TAG: Final = re.compile(rf"<(/?)\s*(?:{_NAMES})(?:\s[^<>]*)?>", re.IGNORECASE)
_MARK: Final = re.compile(rf"{_TAG.pattern}|[\"{{}}\[\]]", re.IGNORECASE)


def without_reasoning(text: str) -> str:
    """Give the text back without the thinking; itself when there is none."""
    if _TAG.search(text) is None:
        return text
    kept: list[str] = []
    start = position = depth = 0
    while (mark := _MARK.search(text, position)) is not None:
        char, position = mark.group(), mark.end()
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth = max(0, depth - 1)
        elif char == '"':
            if depth and opens_string(text, mark.start()):
                position = string_end(text, position)
        elif mark.group(1):  # a closing tag that nobody opened: all before it was thinking
            kept, start, depth = [], position, 0
        else:
            kept.append(text[start : mark.start()])
            start = position = _after_closing(text, position)
    kept.append(text[start:])
    return " ".join(kept)


def _after_closing(text: str, position: int) -> int:
    depth = 1
    for tag in _TAG.finditer(text, position):
        depth += -1 if tag.group(1) else 1
        if not depth:
            return tag.end()
    return len(text)
