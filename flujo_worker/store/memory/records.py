"""The records of runs in memory."""

from __future__ import annotations

from collections.abc import Sequence

from flujo_client.contract.outcome import Event
from flujo_worker.ports import Records, Reply
from flujo_worker.store.memory.reads import ReadsInMemory
from flujo_worker.store.memory.tables import InMemory, Tables


class RecordsInMemory(InMemory):
    """The port `RecordStore`."""

    def __init__(self, tables: Tables, reads: ReadsInMemory) -> None:
        super().__init__(tables)
        self._reads = reads

    def reply(self, key: str) -> Reply | None:
        row = self._t.attempts.get(key)
        return None if row is None or row.question is None else Reply(row.question, row.answer)

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        at = (run, address, step)
        rows = [row for row in self._t.attempts.values() if (row.key.run, row.key.address, row.key.step) == at]
        rows.sort(key=lambda row: row.key.number)
        rows = [row for row in rows if row.answer is not None or row.status not in ("paused", "cancelled")]
        return [Reply(row.question, row.answer) for row in rows if row.question is not None]

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        for event in events:
            self._t.add_event(run, key, event.name, event.level, event.data, event.at)

    def read(self, run: str) -> Records:
        return Records(self._reads.read_run(run), self._reads.read_attempts(run), self._reads.read_scopes(run))
