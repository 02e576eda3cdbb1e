"""Statements of a worker's upkeep: delete rows after their retention, export ended attempts, fire schedules."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from flujo_client.serial import dumps, storable_text
from flujo_worker.domain.ended import (
    AnyEnded,
    AttemptEvent,
    EndedAttempt,
    EndedRun,
    EndedScope,
    EndedUnit,
    Export,
    Kind,
    Position,
)
from flujo_worker.ports import PrunedUnits
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from flujo_worker.domain.retention import RetentionRule
    from flujo_worker.domain.schedules import DueSchedule, Fired

_ROWS: Final[Mapping[Kind, tuple[str, type[Any]]]] = {
    "run": ("ended_runs", EndedRun),
    "scope": ("ended_scopes", EndedScope),
    "attempt": ("ended_attempts", EndedAttempt),
    "unit": ("ended_units", EndedUnit),
}


class ExportsInPostgres(InPostgres):
    def begin(self, worker: str, *, patience_s: float, margin_s: float) -> Export | None:
        rows = self._pool.rows("begin_export", {"worker": worker, "patience_s": patience_s, "margin_s": margin_s})
        if not rows:
            return None
        sent = {kind: Position(datetime.fromisoformat(at), key) for kind, (at, key) in rows[0]["positions"].items()}
        return Export(sent, rows[0]["now"], rows[0]["until"])

    def ended(self, kind: Kind, since: Position, until: datetime, limit: int) -> list[AnyEnded]:
        name, row_type = _ROWS[kind]
        parameters = {"since": since.at, "after": since.key, "until": until, "limit": limit}
        return [row_type(**row) for row in self._pool.rows(name, parameters)]

    def events(self, attempts: Sequence[EndedAttempt], names: Sequence[str]) -> dict[str, list[AttemptEvent]]:
        found = defaultdict[str, list[AttemptEvent]](list)
        if attempts:
            parameters = {
                "runs": list({each.run for each in attempts}),
                "attempts": [each.key for each in attempts],
                "names": list(names),
                "since": min(each.began for each in attempts),
                "until": max(each.ended for each in attempts),
            }
            for row in self._pool.rows("events_of_attempts", parameters):
                found[row["attempt"]].append(AttemptEvent(row["at"], row["name"], row["data"]))
        return found

    def advance(self, worker: str, positions: Mapping[Kind, Position], *, refused: int) -> bool:
        written = {kind: (each.at.isoformat(), each.key) for kind, each in positions.items()}
        parameters = {"worker": worker, "positions": orjson.dumps(written).decode(), "refused": refused}
        return bool(self._pool.rows("advance_export", parameters))


DAYS_AHEAD = 2, 7
"""The first and the last day, counted from today, for which partitions of events are made ahead. The default partition has all other events."""
MOST: Final = 2**31 - 1


class RetentionInPostgres(InPostgres):
    def begin_pruning(self, every_s: float) -> bool:
        return bool(self._pool.rows("begin_pruning", {"every_s": every_s}))

    def prune_runs(
        self, rules: Sequence[RetentionRule], limit: int, *, is_summarized: bool = False, waits_s: float = 0.0
    ) -> list[str]:
        parameters = _bind(rules) | {"limit": limit, "waits_s": waits_s}

        def prune(connection: Connection) -> list[str]:
            with connection.transaction():
                held = {"runs": _ids(execute(connection, "hold_aged_runs", parameters))}
                # what a fork took over must not be unused once its first run is gone
                if not held["runs"] or any(row["missed"] for row in execute(connection, "mark_blobs", held)):
                    return []
                gone = _ids(execute(connection, "prune_runs", held | {"is_summarized": is_summarized}))
                execute(connection, "prune_budgets", {"runs": gone})
                return gone

        return self._pool.with_retry(prune)

    def prune_summaries(self, older_s: float, limit: int) -> None:
        self._pool.do("prune_summaries", {"older_s": older_s, "limit": limit})

    def sweep_blobs(self, limit: int, *, every_s: float, unused_s: float) -> bool:
        self._pool.do("begin_marking", {"every_s": every_s, "unused_s": unused_s})
        rows = self._pool.rows("marked_to", {"limit": limit})
        if not rows:
            return False
        [search] = rows
        if search["marked_to"] is None:
            [swept] = self._pool.rows("sweep_blobs", {"limit": limit, "unused_s": unused_s})
            return bool(swept["looked_at"])
        if any(row["missed"] for row in self._pool.rows("mark_blobs", {"runs": search["runs"]})):
            return False
        to = search["runs"][-1] if search["runs"] else None
        self._pool.do("advance_marking", {"since": search["since"], "from": search["marked_to"], "to": to})
        return True

    def prune_units(
        self, older_s: float, after: tuple[str, str] = ("", ""), *, places: int, units: int, waits_s: float = 0.0
    ) -> PrunedUnits:
        given = {"older_s": older_s, "run": after[0], "place": after[1], "limit": places, "units": units}
        [row] = self._pool.rows("prune_units", {**given, "waits_s": waits_s})
        return PrunedUnits(row["gone"], None if row["run_id"] is None else (row["run_id"], row["place"]))

    def prune_gates(self) -> None:
        self._pool.do("prune_gates", {})

    def prune_bookkeeping(self, older_s: float) -> int:
        return int(self._pool.rows("prune_bookkeeping", {"older_s": older_s})[0]["gone"])

    def rotate_event_partitions(self, keep_days: int | None) -> None:
        self._pool.do("rotate_event_partitions", {"first": DAYS_AHEAD[0], "last": DAYS_AHEAD[1], "keep": keep_days})

    def tally(self, lag_s: float = 20.0) -> bool:
        return not any(row["behind"] for row in self._pool.rows("tally", {"lag_s": lag_s}))

    def count_aged_runs(self, rules: Sequence[RetentionRule], *, waits_s: float) -> dict[tuple[str, str], int]:
        """Count the runs that `prune_runs` would delete, without their child runs: by pipeline and how they ended."""
        rows = self._pool.rows("count_aged_runs", _bind(rules) | {"limit": MOST, "waits_s": waits_s})
        return {(row["pipeline"], row["status"]): row["runs"] for row in rows}


def _bind(rules: Sequence[RetentionRule]) -> dict[str, Any]:
    return {
        "statuses": [rule.status for rule in rules],
        "pipelines": [rule.pipeline for rule in rules],
        "ages": [rule.older_s for rule in rules],
    }


def _ids(cursor: psycopg.Cursor[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in cursor.fetchall()]


class SchedulesInPostgres(InPostgres):
    def due(self, limit: int) -> list[DueSchedule]:
        if not (rows := self._pool.rows("due_schedules", {"limit": limit})):
            return []
        from flujo_client.contract.schedules import ScheduleRecord
        from flujo_worker.domain.schedules import DueSchedule

        return [
            DueSchedule(
                ScheduleRecord.of(row), row["fingerprint"], bytes(row["body"]), row["now"], row["failing_since"]
            )
            for row in rows
        ]

    def advance(self, due: DueSchedule, fired: Fired) -> bool:
        from flujo_client.contract.schedules import due_at

        record, slot = due.record, fired.next_slot
        parameters = {
            "schedule": record.name,
            "slot_at": record.slot_at,
            "timing": dumps(record.timing.to_tree()).decode(),
            "next_slot": slot,
            "next_due": None if slot is None else due_at(record.name, slot, record.timing),
            "again_s": fired.again_s,
            "last_slot": fired.last_slot,
            "last_run": fired.run,
            "error": None if fired.error is None else storable_text(fired.error),
        }
        return bool(self._pool.rows("advance_schedule", parameters))
