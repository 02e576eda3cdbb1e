"""The records of runs on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from flujo_client.contract.outcome import Event
from flujo_client.contract.rows import attempt_record, run_record, scope_record
from flujo_worker.ports import Records, Reply
from flujo_worker.store.postgres.bind import columns
from flujo_worker.store.postgres.entities import NEW_EVENT
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT
from flujo_worker.store.rows import reply_of


class RecordsInPostgres(InPostgres):
    """The port `RecordStore`."""

    def reply(self, key: str) -> Reply | None:
        rows = self._pool.rows("reply", {"key": key}, binary=True)
        return reply_of(rows[0]) if rows else None

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        rows = self._pool.rows("replies", {"run": run, "address": address, "step": step}, binary=True)
        return [reply_of(row) for row in rows]

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        self._pool.do("note", {"run": run, "attempt": key, **columns("event", NEW_EVENT, events)})

    def read(self, run: str) -> Records:
        found, *rest = (self._pool.rows(name, {"run": run}, home=CLIENT) for name in ("run", "attempts", "scopes"))
        return Records(run_record(found[0]), list(map(attempt_record, rest[0])), list(map(scope_record, rest[1])))
