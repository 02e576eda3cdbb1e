"""What traces are exported from, on Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

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
from flujo_worker.store.postgres.pool import InPostgres

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
