"""The records of runs on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from flujo_client.contract.outcome import Event
from flujo_client.contract.rows import attempt_record, run_record, scope_record
from flujo_worker.ports import Records, Reply
from flujo_worker.store.postgres.entities import as_text, shown
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, execute
from flujo_worker.store.rows import reply_of


class RecordsInPostgres(InPostgres):
    """The port `RecordStore`."""

    def reply(self, key: str) -> Reply | None:
        rows = self._pool.rows("reply", {"key": key}, binary=True)
        return reply_of(rows[0]) if rows else None

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        return [
            reply_of(row)
            for row in self._pool.rows("replies", {"run": run, "address": address, "step": step}, binary=True)
        ]

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        parameters = {
            "run": run,
            "attempt": key,
            "names": [as_text(event.name) for event in events],
            "levels": [event.level for event in events],
            "data": [shown(event.data) for event in events],
            "at": [event.at for event in events],
        }
        self._pool.do("note", parameters)

    def read(self, run: str) -> Records:
        def read(connection: psycopg.Connection[dict[str, Any]]) -> Records:
            found, attempts, scopes = (
                execute(connection, name, {"run": run}, home=CLIENT).fetchall()
                for name in ("run", "attempts", "scopes")
            )
            return Records(run_record(found[0]), list(map(attempt_record, attempts)), list(map(scope_record, scopes)))

        return self._pool.with_retry(read)
