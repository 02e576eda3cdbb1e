"""Find regions of a text that are strict JSON, at any depth: the decoder finds their ends faster than a scan does.

It must not judge them, nor return their values. In: the place of an opener; out: the regions from there on.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import Final

from flujo_worker.aros.region_patterns import BRACKET

AT_ONCE: Final = 64
"""The number of regions between two checks of the budget."""
_FAILURES: Final = 64
"""The number of failures after which the decoder is no longer tried."""
_decoded_from: Final = json.JSONDecoder().raw_decode

Region = tuple[int, int]


class DecodableRegions:
    """The regions of one text that are strict JSON.

    Args:
        text: the text.
        level: the level of repair; from 1 on, the text after a region decides whether it ends there.
    """

    def __init__(self, text: str, level: int) -> None:
        self._text, self._level = text, level
        self._failures_left = _FAILURES

    def from_place(self, place: int) -> list[Region]:
        """Return some regions with only prose between them, of which the first begins at a place; none if it is not JSON."""
        text, found = self._text, list[Region]()
        if not self._failures_left:
            return found
        try:
            for _ in repeat(None, AT_ONCE):
                end = _decoded_from(text, place)[1]
                if self._level and text[end : end + 1].strip() not in {"", *",}]"}:
                    break
                found.append((place, end))
                bracket = BRACKET.search(text, end)
                if bracket is None or bracket[0] in "}]":
                    break
                place = bracket.start()
        except (ValueError, RecursionError):
            self._failures_left -= 1
        return found
