"""A sentence about a run, as data, and the words for numbers, spans and times in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

Tone = Literal["bad", "person", "stuck", "wait", "run", "off", "ok"]
"""Who has to act. bad: it failed; person: somebody is asked; stuck: it does not move by itself; wait: it moves by itself; run: it works;
off: it was stopped on purpose; ok: it is done."""
Act = Literal["retry", "cancel", "answer", "upgrade"]
PartKind = Literal["text", "code", "quote", "run", "own"]
_WITH_SECONDS_S: Final = 120
_WITHOUT_DAY_S: Final = 12 * 3600
"""Up to these distances a time is written with its seconds, or without its day."""
_TEENS: Final = (11, 12, 13)
_UNITS: Final = (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


class Part(NamedTuple):
    """A piece of a sentence.

    Attributes:
        kind: `text` is ours; `code` is a name or a message of the user's, `quote` what a person or a model wrote, `run` another run, and
            `own` what is true of this run only, which is left out where runs with equal causes are one line.
        text: the piece as it is read.
        run: the id of the run that it names.
    """

    kind: PartKind
    text: str
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """Where one run stopped, why, and what moves it."""

    cause: str
    """The name of its template; stable, for programs and filters."""
    tone: Tone
    parts: tuple[Part, ...]
    fix: str = ""
    """What a person can do, in one sentence; empty if nothing has to be done."""
    place: str = ""
    """The key of the attempt that it is about; empty if it is about the whole run."""
    since: datetime | None = None
    until: datetime | None = None
    """When the run moves by itself, if that is known."""
    acts: tuple[Act, ...] = ()
    """What may be done about it."""
    key: str = ""
    """Equal for runs that are where they are for the same reason."""

    @property
    def text(self) -> str:
        """Return it as a terminal shows it."""
        return _joined(self.parts)

    @property
    def shared(self) -> str:
        """Return what is true of all runs with this cause."""
        return _joined(part for part in self.parts if part.kind != "own")

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain data, as `--json` and `?format=json` print it."""
        own = {name: getattr(self, name) for name in ("cause", "tone", "text", "fix", "place", "key")}
        times = {name: at and at.isoformat() for name, at in (("since", self.since), ("until", self.until))}
        return {**own, **times, "acts": list(self.acts)}


def _joined(parts: Iterable[Part]) -> str:
    return "".join(f"“{part.text}”" if part.kind == "quote" else part.text for part in parts)


def span(seconds: float) -> str:
    """Write a duration in at most two units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _UNITS[-1][1]:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    unit, size, smaller, part = next(each for each in _UNITS if seconds >= each[1])
    rest = int(seconds % size // part)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest and seconds < 10 * size else "")


def clock(at: datetime, now: datetime) -> str:
    """Write a time as a clock shows it, with its distance from now."""
    seconds = (at - now).total_seconds()
    shown = f"{at.day} {at:%b %H:%M}"
    if abs(seconds) < _WITH_SECONDS_S:
        shown = f"{at:%H:%M:%S}"
    elif abs(seconds) < _WITHOUT_DAY_S:
        shown = f"{at:%H:%M}"
    return f"{shown} (in {span(seconds)})" if seconds > 0 else f"{shown} ({span(-seconds)} ago)"


def counted(number: int, thing: str) -> str:
    """Write how many there are of a thing."""
    plural = "es" if thing.endswith(("ch", "s")) else "s"
    return f"{number:,} {thing}{'' if number == 1 else plural}"


def times(number: int) -> str:
    """Write how often something happened."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def ordinal(number: int) -> str:
    """Write a place in a line, from 1."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in _TEENS else ending}"
