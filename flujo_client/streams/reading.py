"""The rules of reading a stream: entries and rows in, events out. Pure.

Each event is given once and in order. What is missing is a `gap`, and after it a `snapshot` of what is merged. A reader that goes on after a cursor
gets no text of steps that are merged by then: it may have their outputs already, and each has its `step_end`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flujo_client.contract.records import StepRecord
from flujo_client.contract.stream import BEGINNING, Cursor, StreamEvent, place_of

Output = Callable[[StepRecord], Any]


class Rows(NamedTuple):
    """Attempts at a run's steps, as Postgres has them, and how an attempt's output is read."""

    steps: Sequence[StepRecord]
    output: Output


class StreamReading:
    """Decide which events of a stream a reader is given. `after` is the cursor of the last event that it has."""

    def __init__(self, after: Cursor) -> None:
        self.at, self.is_over, self._goes_on = after, False, after != BEGINNING
        self._given: dict[str, int] = {}
        """The attempts whose results have been given, by place."""
        self._open: dict[str, int] = {}
        self._replaced: dict[str, int] = {}
        """The attempts, by place, whose results were merged when their first text came; 0 for none."""
        self._gaps_due: set[str] = set()
        """The places whose writers will write a `gap` because another epoch began, which the reader has had."""
        self._is_after_gap = False

    def needs(self, entries: Iterable[StreamEvent]) -> Collection[str] | None:
        """Return the places whose rows `take` needs; None: all, because something before one of these entries may be missing."""
        at, places = self.at, set[str]()
        for entry in entries:
            cursor, place = Cursor.parse(entry.cursor), place_of(entry.address, entry.step)
            if entry.kind == "gap" or not _follows(at, cursor):
                return None
            if entry.kind == "step_end" or (entry.kind == "token" and self._goes_on and place not in self._replaced):
                places.add(place)
            at = cursor
        return places

    def take(self, entries: Iterable[StreamEvent], rows: Rows) -> Iterator[StreamEvent]:
        """Yield the events of entries.

        `rows` succeeded at the places that `needs` returned; if that was None, all that succeeded or run. They were read after the entries.
        """
        self._is_after_gap = False
        for entry in entries:
            cursor = Cursor.parse(entry.cursor)
            if not _follows(self.at, cursor):
                yield from self.gap(Cursor(cursor.epoch, cursor.seq - 1), rows)
            is_gap = entry.kind == "gap" and not self._is_after_gap
            if is_gap and place_of(entry.address, entry.step) not in self._gaps_due:
                yield from self.gap(cursor, rows)
            self.at = cursor
            yield from self._event(entry, rows)

    def gap(self, to: Cursor, rows: Rows) -> Iterator[StreamEvent]:
        """Yield a `gap` up to an entry, and a `snapshot` of these rows."""
        if to.epoch != self.at.epoch:
            self._gaps_due |= self._open.keys()
        lost, self.at, self._is_after_gap = self.at, to, True
        self._open.clear()
        self._given |= {_place(row): row.attempt for row in rows.steps if row.status == "succeeded"}
        yield StreamEvent("gap", {"from": str(lost), "to": str(to)}, cursor=str(lost))
        steps = [_shown(row, rows.output) for row in rows.steps]
        yield StreamEvent("snapshot", {"steps": steps}, cursor=str(to))

    def lacks(self, row: StepRecord) -> bool:
        """Return whether the end of this attempt has not been given."""
        return self._given.get(_place(row), 0) < row.attempt

    def awaits_ends(self, steps: Iterable[StepRecord], claims: Mapping[bytes, bytes]) -> bool:
        """Return whether the worker of an attempt that is merged has yet to write its end."""
        writing = _in_state("open", claims)
        merged = (row for row in steps if row.status == "succeeded" and self.lacks(row))
        return any(writing.get(_place(row)) == row.attempt for row in merged)

    def end(self, data: Mapping[str, Any], rows: Rows, claims: Mapping[bytes, bytes]) -> Iterator[StreamEvent]:
        """Yield the last events of a run that has ended.

        Args:
            data: the data of the event `end`.
            rows: the attempts that succeeded and whose ends have not been given.
            claims: those of the stream's places.
        """
        written = _in_state("ended", claims)
        for row in rows.steps:
            place = _place(row)
            was_before = place not in self._open and written.get(place) == row.attempt  # before `after`
            if row.status == "succeeded" and self.lacks(row) and not was_before:
                self._given[place] = row.attempt
                ended = {"status": row.status, "output": rows.output(row)}
                yield StreamEvent("step_end", ended, row.step, row.address, row.attempt, str(self.at))
        left = _in_state("open", claims) | self._open
        for place, attempt in left.items():
            if place not in self._given:
                address, _, step = place.rpartition(":")
                yield StreamEvent("withdrawn", {}, step, address, attempt, str(self.at))
        self.is_over = True
        yield StreamEvent("end", data, cursor=str(self.at))

    def _event(self, entry: StreamEvent, rows: Rows) -> Iterator[StreamEvent]:
        place = place_of(entry.address, entry.step)
        if entry.kind == "gap":
            self._gaps_due.discard(place)
            return
        self._is_after_gap = False
        if 0 < entry.attempt <= self._given.get(place, 0) or (entry.kind == "token" and self._is_replaced(entry, rows)):
            return
        if entry.kind == "step_end":
            row = next((row for row in rows.steps if _place(row) == place and row.attempt == entry.attempt), None)
            if row is None:
                return
            self._open.pop(place, None)
            self._given[place] = row.attempt
            entry = replace(entry, data={**entry.data, "status": row.status, "output": rows.output(row)})
        elif entry.kind == "withdrawn":
            self._open.pop(place, None)
        elif entry.step:
            self._open[place] = entry.attempt
        yield entry

    def _is_replaced(self, token: StreamEvent, rows: Rows) -> bool:
        """Return whether the reader needs the output of a step, and not its text."""
        place = place_of(token.address, token.step)
        if self._goes_on and place not in self._replaced:
            merged = (row.attempt for row in rows.steps if row.status == "succeeded" and _place(row) == place)
            self._replaced[place] = max(merged, default=0)
        return token.attempt <= self._replaced.get(place, 0)


def _follows(at: Cursor, cursor: Cursor) -> bool:
    """Return whether no entry is missing between the two."""
    return cursor == (at.epoch, at.seq + 1) or (at == BEGINNING and cursor.seq == 1)


def _in_state(state: str, claims: Mapping[bytes, bytes]) -> dict[str, int]:
    """Return the places whose claim is in this state, each with the number of its attempt."""
    known = ((place, claim.decode().split()) for place, claim in claims.items())
    return {place.decode(): int(number) for place, (number, _, its) in known if its == state}


def _place(row: StepRecord) -> str:
    return place_of(row.address, row.step)


def _shown(row: StepRecord, output: Output) -> dict[str, Any]:
    shown: dict[str, Any] = {"address": row.address, "step": row.step, "attempt": row.attempt, "status": row.status}
    return shown | {"output": output(row)} if row.status == "succeeded" else shown
