"""The pieces that sentences share: parts, places, errors and amounts in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack

from flujo_client.address import end_of
from flujo_client.contract.outcome import Fault
from flujo_client.explain.facts import AttemptFacts, RunFacts
from flujo_client.explain.sentence import Act, Part, Sentence, Tone, clock, times
from flujo_client.plan.kinds import KINDS

Piece = str | Part | Sequence[Part]
"""A piece of a sentence; a text is a part of kind `text`."""
LONGEST_LINE: Final = 200
SHORT_ID: Final = 6
_NUMBERS: Final = re.compile(r"#\d+")
_ENDS: Final = (".", "…", "?", "!")


def code(text: object) -> Part:
    """Return a name or a message of the user's, on one line."""
    return Part("code", _cut(" ".join(str(text).split())))


def quote(text: object) -> Part:
    """Return what a person or a model wrote: its first line."""
    return Part("quote", line(str(text)))


def own(text: str) -> Part:
    """Return what is true of this run only."""
    return Part("own", text)


def short_id(run_id: str) -> str:
    """Return the end of a run's id, or all of an id whose end is not random."""
    return end_of(run_id, SHORT_ID)


def named_run(run_id: str) -> Part:
    """Return a run, which is named by its short id."""
    return Part("run", short_id(run_id), run_id)


def child_run(verb: str, run_id: str, child: Sentence) -> Piece:
    """Describe a run by the sentence about its only child run."""
    first, *rest = child.parts
    lower = first._replace(text=first.text[:1].lower() + first.text[1:])
    return parts(verb, own(" "), named_run(run_id)._replace(kind="own"), ": ", [lower, *rest])


def line(text: str) -> str:
    """Return the first line of a text that has something in it, with single spaces and not too long."""
    return _cut(next(filter(None, (" ".join(each.split()) for each in text.splitlines())), ""))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"


def parts(*pieces: Piece) -> tuple[Part, ...]:
    """Put pieces together; texts beside each other become one part."""
    flat = [part for piece in pieces for part in _flat(piece) if part.text]
    joined: list[Part] = []
    for part in flat:
        if joined and part.kind == joined[-1].kind == "text":
            joined[-1] = Part("text", joined[-1].text + part.text)
        else:
            joined.append(part)
    return tuple(joined)


def _flat(piece: Piece) -> Sequence[Part]:
    if isinstance(piece, Part):
        return (piece,)
    return (Part("text", piece),) if isinstance(piece, str) else piece


class Moves(TypedDict, total=False):
    """What moves a run, as in `Sentence`: by itself, or by a person."""

    fix: str
    since: datetime | None
    until: datetime | None
    acts: tuple[Act, ...]


def sentence(
    cause: str,
    tone: Tone,
    *pieces: Piece,
    about: Sequence[object],
    at: AttemptFacts | None = None,
    **moves: Unpack[Moves],
) -> Sentence:
    """Make a sentence, with its full stop; a quote at the end has none.

    `about` tells its reason from others with this cause; `at` is the attempt that it is about.
    """
    key = "|".join([cause, *(str(each or "") for each in about)])
    wording = parts(*pieces)
    if wording[-1].kind != "quote" and not wording[-1].text.endswith(_ENDS):
        wording = parts(wording, ".")
    return Sentence(cause, tone, wording, place="" if at is None else at.key, key=key, **moves)


def kind_of_place(facts: RunFacts, at: AttemptFacts | None) -> tuple[str, ...]:
    """Return what equal places of runs of one pipeline have in common: no numbers of items and iterations."""
    if at is None:
        return (facts.run.name,)
    return facts.run.name, _NUMBERS.sub("#", at.address), at.step


def place(facts: RunFacts, at: AttemptFacts) -> Sequence[Part]:
    """Name a place as users do: the step, in which branch, which item of what, and which attempt if that says something."""
    return [code(at.step), *_within(facts, at), *_attempt(at)]


def _within(facts: RunFacts, at: AttemptFacts) -> Iterator[Part]:
    address = at.address.removeprefix(facts.run.root).lstrip("/")
    numbered, _, rest = address.rpartition("#")
    number, _, below = rest.partition("/")
    if not (numbered and number.isdecimal()):
        numbered, below = "", address
    if "/" in below:
        yield Part("text", ", in ")
        yield code("/".join(below.split("/")[-2:]))
    if numbered:
        spec = KINDS.get(at.around or "")
        word = spec.child if spec is not None and spec.child is not None else "item"
        total = f" of {at.siblings}" if at.siblings and word == "item" else ""
        yield Part("text", f", {word}")
        yield own(f" {number}{total}")
        yield Part("text", " of ")
        yield code(numbered.rpartition("/")[2])


def _attempt(at: AttemptFacts) -> Iterator[Part]:
    most = max(at.max_attempts or 0, at.number)
    if at.kind == "step" and at.number > 1:
        yield Part("text", f", attempt {at.number} of {most}" if at.max_attempts else f", attempt {at.number}")


def while_at(at: AttemptFacts | None) -> Piece:
    """Say where a run was when it was stopped from outside; an attempt that never started had not begun."""
    if at is None:
        return ""
    if at.kind == "resume":
        event = (at.question or {}).get("event")
        awaited = parts("event ", code(event)) if event else "an answer"
        return parts(" while it waited for ", awaited, " at ", code(at.step))
    if at.waits_for == "sleep":
        return parts(" while it slept at ", code(at.step))
    return parts(" while at ", code(at.step)) if at.started_at else parts(" before ", code(at.step), " began")


def frame(fault: Fault | None, before: str = " in ") -> Piece:
    """Say where the user's own code raised."""
    seen = details(fault)
    return parts(before, code(f"{seen['file']}:{seen['line']}")) if "file" in seen and "line" in seen else ""


def details(fault: Fault | None) -> Mapping[str, Any]:
    """Return what is stored of a fault besides its message; nothing, for an older row."""
    return {} if fault is None else fault.details


def raised(fault: Fault) -> Part:
    """Return the class and the message of an error; of a provider's refusal, the status and the answer."""
    seen = details(fault)
    if "status" in seen:
        return code(" ".join(str(seen[name]) for name in ("status", "answer") if seen.get(name)))
    return code(f"{fault.type_name}: {fault.message}" if fault.message else fault.type_name)


def losses(at: AttemptFacts) -> str:
    """Say how often an attempt lost its worker, or that a living one gave it up last."""
    if at.loss is not None and at.loss.get("worker") is None:
        return f"a worker gave it up {times(at.losses)}"
    return f"it lost its worker {times(at.losses)}"


def amount(value: float, unit: str) -> str:
    """Write an amount of money or tokens."""
    if unit == "tokens":
        return f"{value:,.0f} tokens"
    return f"${f'{value:,.6f}'.rstrip('0').rstrip('.')}"


def until(at: datetime, now: datetime) -> str:
    """Write the time until which something lasts."""
    return f" until {clock(at, now)}"
