"""What a rule of `flujo doctor` finds, and how bad it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Level = Literal["ok", "note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "error")
"""From the best to the worst. An error: something does not work. A warning: it will not last. A note: it is good to know."""


class Diagnosis(NamedTuple):
    """A rule's finding about a thing, and the line to change."""

    level: Level
    thing: str
    what: str
    change: str | None = None


def worst(findings: Sequence[Diagnosis]) -> Level:
    """Return the worst level among findings."""
    return max((each.level for each in findings), key=LEVELS.index, default="ok")
