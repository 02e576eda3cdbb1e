"""A path that a template or an expression reads, written as another one in its text. Pure.

What only looks like it stays: a text in quotes, what stands between tags, the middle of a longer path. In: an entry of a blueprint's text and two
paths; out: the edit of its first place, or None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flujo_client.errors import BlueprintTextError
from flujo_client.expressions.tokens import tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flujo_client.blueprint.token_spans import Edit, SourceEntry
    from flujo_client.expressions.tokens import Token

_OPENING: Final = re.compile(r"\{\{[ \t\r\n]*(?:#if|#each)?")
_OTHER_TAG: Final = re.compile(r"\{\{[ \t\r\n]*(?:/if|/each|else)[ \t\r\n]*\}\}")


def path_replaced(entry: SourceEntry, path: Sequence[str], other: Sequence[str]) -> Edit | None:
    """Write another path in the first place at which one is read; None where it is not written out as `a.b.c`."""
    try:
        words = list(_words(entry.value))
    except BlueprintTextError:
        return None
    wanted = [word for part in path for word in (part, ".")][:-1]
    for index, word in enumerate(words):
        is_root = index == 0 or words[index - 1].text != "."
        if is_root and [each.text for each in words[index : index + len(wanted)]] == wanted:
            return entry.part_replaced(word.at, words[index + len(wanted) - 1].end, ".".join(other))
    return None


def _words(text: str) -> Iterator[Token]:
    """Give the words of an expression, or of every tag of a template."""
    if "{{" not in text:
        yield from tokens(text)
        return
    at = 0
    while opening := _OPENING.search(text, at):
        other = _OTHER_TAG.match(text, opening.start())
        if other is not None:
            at = other.end()
            continue
        words = tokens(text, opening.end(), closed_by="}}")
        yield from words
        at = words[-1].end
