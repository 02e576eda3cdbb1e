"""What has changed in what is asked: it is compared with what is on record. Pure."""

from collections.abc import Sequence
from difflib import SequenceMatcher, unified_diff
from itertools import islice
from typing import Final, NamedTuple

_HEAD: Final = 3
"""The lines of a diff before what differs."""


class Nearest(NamedTuple):
    """Which of the recorded ones is most like what is asked, and how they differ: lines of a unified diff, without its head."""

    place: int
    diff: list[str]

    @property
    def changed(self) -> list[str]:
        """Return only the lines that differ, each after `-`, as recorded, or `+`, as asked."""
        return [line for line in self.diff if line[0] in "+-"]


def nearest(asked: Sequence[str], recorded: Sequence[Sequence[str]]) -> Nearest:
    """Find it among at least one."""
    ratios = [SequenceMatcher(None, lines, asked, autojunk=False).ratio() for lines in recorded]
    place = ratios.index(max(ratios))
    return Nearest(place, list(islice(unified_diff(recorded[place], asked, lineterm="", n=2), _HEAD - 1, None)))
