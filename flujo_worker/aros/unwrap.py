"""Takes off what is around an answer: codes of a terminal, thinking, and one layer of encoding.

A code or a tag inside a JSON string is text, and stays. Thinking is what is between closed tags, before a closing tag that was not opened,
and after an opening tag that was not closed. Encoding is a JSON text that was written as a JSON string, with its quotes or without; a
string inside an object is the object's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from flujo_client.patterns import compiled
from flujo_worker.aros.strings import opens_string, string_end

_NAMES: Final = "think|thinking|reasoning|reflection|scratchpad"
_TAG: Final = compiled(rf"<(/?)\s*(?:{_NAMES})(?:\s[^<>]*)?>", re.IGNORECASE)
_MARK: Final = compiled(rf"{_TAG.pattern}|[\"{{}}\[\]]", re.IGNORECASE)
_BEGIN_CODE: Final = ("\x1b", "\x9b", r"\x1b[", r"\x1B[", r"\u001b[", r"\u001B[", r"\033[", r"\e[", "^[[", "␛[")
"""What codes begin with, also where something wrote them out."""
_CODE_OR_MARK: Final = compiled(
    r"(?P<code>(?:(?:\x1b|\\x1[bB]|\\u001[bB]|\\033|\\e|\^\[|␛)\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_])|[\"{}\[\]]"
)
"""A code of ECMA-48 (colours, movements of the cursor, links), or what may begin or end a string."""
_BEFORE_STRING: Final = frozenset("{[,:")
MOST_ENCODED: Final = 8
"""The maximum number of encoded texts that are searched in one text."""
_ESCAPED: Final = compiled(r"[{\[](?:\s|\\++[nrt]|[{\[])*+\\++\"")
_BEFORE: Final = frozenset('\\" \t\r\n')


def without_codes(text: str) -> str:
    """Return the text without the codes of a terminal, such as colours; itself when there are none."""
    if not any(sign in text for sign in _BEGIN_CODE):
        return text
    kept: list[str] = []
    start = position = depth = 0
    before = ""
    while (mark := _CODE_OR_MARK.search(text, position)) is not None:
        sign = mark.group()
        before, position = text[position : mark.start()].rstrip()[-1:] or before, mark.end()
        if mark.lastgroup == "code":
            kept.append(text[start : mark.start()])
            start = position
            if text[mark.start() - 1 : mark.start()].isalnum() and text[position : position + 1].isalnum():
                kept.append(" ")  # what a code divides is not one word
            continue
        if sign == '"' and depth and before in _BEFORE_STRING:
            position = string_end(text, position)
        elif sign != '"':
            depth = depth + 1 if sign in "[{" else max(0, depth - 1)
        before = sign
    return "".join([*kept, text[start:]])


def without_reasoning(text: str) -> str:
    """Return the text back without the thinking; itself when there is none."""
    tags = [tag.end() for tag in _TAG.finditer(text)]
    if not tags:
        return text
    kept: list[str] = []
    start = position = depth = 0
    while (mark := _MARK.search(text, position, tags[-1])) is not None:
        char, position = mark.group(), mark.end()
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth = max(0, depth - 1)
        elif char == '"':
            if depth and opens_string(text, mark.start()):
                position = string_end(text, position)
        elif mark.group(1):  # a closing tag that was not opened: all before it was thinking
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


def layers(text: str, regions: Iterable[tuple[int, int]]) -> list[str]:
    """Return the texts that `text` holds one layer down: the whole when it is one JSON string, else what its regions hold."""
    whole = text.strip()
    if whole[:1] == '"' and string_end(whole, 1) == len(whole):
        return _readable([whole])
    if "\\" not in text:
        return []
    largest = sorted(regions, key=lambda region: region[0] - region[1])[:MOST_ENCODED]
    return _readable(_literal(text, start, end) for start, end in largest if _ESCAPED.match(text, start))


def _literal(text: str, start: int, end: int) -> str:
    """Return the JSON string that holds the region: what is in quotes around it, else the region put in quotes."""
    opening = _opening_quote(text, start)
    if opening is None:
        return f'"{text[start:end]}"'
    return text[opening : string_end(text, opening + 1)]


def _opening_quote(text: str, start: int) -> int | None:
    found = None
    place = start - 1
    while place >= 0 and text[place] in _BEFORE:
        if text[place] == '"' and text[place - 1 : place] != "\\":
            found = place
        place -= 1
    return found


def _readable(literals: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for literal in literals:
        try:
            text = json.loads(literal, strict=False)
        except ValueError:
            continue
        if isinstance(text, str) and ("{" in text or "[" in text):
            found[text] = None
    return list(found)
