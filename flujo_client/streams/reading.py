"""The rules of reading a stream: entries and rows in, events out. Pure.

Each event is given once and in order. What is missing is a `gap`, and after it a `snapshot` of what is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """What a reader has been given of a stream.

    Args:
        after: the last event that it has.
    """

    def __init__(self, after: Cursor) -> None:
        self.at, self.is_over = after, False
        self._given: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._told: set[str] = set()
        """The places whose writers have still to say that another epoch began."""
        self._is_told = False

    def misses(self, entries: Iterable[StreamEvent]) -> bool:
        """Return whether something before one of these entries may be missing: then they need all rows."""
        at = self.at
        for entry in entries:
            cursor = Cursor.parse(entry.cursor)
            if entry.kind == "gap" or not _follows(at, cursor):
                return True
            at = cursor
        return False

    def take(self, entries: Iterable[StreamEvent], rows: Rows) -> Iterator[StreamEvent]:
        """Yield what entries bring.

        Args:
            entries: as they are in the stream.
            rows: if they miss something, all that succeeded or run; else those that succeeded at the places of `step_end`s. They were read
                after the entries.
        """
        self._is_told = False
        for entry in entries:
            cursor = Cursor.parse(entry.cursor)
            if not _follows(self.at, cursor):
                yield from self.gap(Cursor(cursor.epoch, cursor.seq - 1), rows)
            if entry.kind == "gap" and not self._is_told and place_of(entry.address, entry.step) not in self._told:
                yield from self.gap(cursor, rows)
            self.at = cursor
            yield from self._event(entry, rows)

    def gap(self, to: Cursor, rows: Rows) -> Iterator[StreamEvent]:
        """Yield that all up to an entry is lost, and what is merged."""
        if to.epoch != self.at.epoch:
            self._told |= self._open.keys()
        lost, self.at, self._is_told = self.at, to, True
        self._open.clear()
        self._given |= {_place(row): row.attempt for row in rows.steps if row.status == "succeeded"}
        yield StreamEvent("gap", {"from": str(lost), "to": str(to)}, cursor=str(lost))
        steps = [_shown(row, rows.output) for row in rows.steps]
        yield StreamEvent("snapshot", {"steps": steps}, cursor=str(to))

    def lacks(self, row: StepRecord) -> bool:
        """Return whether the end of this attempt has not been given."""
        return self._given.get(_place(row), 0) < row.attempt

    def awaits_ends(self, steps: Iterable[StepRecord], claims: Mapping[bytes, bytes]) -> bool:
        """Return whether one of these attempts has ended without having written so yet."""
        writing = _in_state("open", claims)
        return any(
            row.status == "succeeded" and self.lacks(row) and writing.get(_place(row)) == row.attempt for row in steps
        )

    def end(self, data: Mapping[str, Any], rows: Rows, claims: Mapping[bytes, bytes]) -> Iterator[StreamEvent]:
        """Yield what is left to say at the run's end.

        Args:
            data: how the run ended.
            rows: all that succeeded and this lacks.
            claims: of the stream's places.
        """
        told = _in_state("ended", claims)
        for row in rows.steps:
            place = _place(row)
            was_before = place not in self._open and told.get(place) == row.attempt  # before `after`
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
            self._told.discard(place)
            return
        self._is_told = False
        if 0 < entry.attempt <= self._given.get(place, 0):
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


def _follows(at: Cursor, cursor: Cursor) -> bool:
    return at.is_followed_by(cursor) or (at == BEGINNING and cursor.seq == 1)


def _in_state(state: str, claims: Mapping[bytes, bytes]) -> dict[str, int]:
    """Return the places whose claim is in this state, each with the number of its attempt."""
    known = ((place, claim.decode().split()) for place, claim in claims.items())
    return {place.decode(): int(number) for place, (number, _, its) in known if its == state}


def _place(row: StepRecord) -> str:
    return place_of(row.address, row.step)


def _shown(row: StepRecord, output: Output) -> dict[str, Any]:
    shown: dict[str, Any] = {"address": row.address, "step": row.step, "attempt": row.attempt, "status": row.status}
    return shown | {"output": output(row)} if row.status == "succeeded" else shown
