"""The records of runs in memory, with the queries of clients and tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from flujo_client.contract import records
from flujo_client.contract.approval import Approval
from flujo_client.contract.outcome import Event
from flujo_worker.ports import Records, Reply
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.tables import InMemory, Tables


class ReadsInMemory(InMemory):
    """The port `RecordStore`, and the reads of clients."""

    def __init__(self, tables: Tables, admission: AdmissionInMemory) -> None:
        super().__init__(tables)
        self._admission = admission

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
        return Records(self.read_run(run), self.read_attempts(run), self.read_scopes(run))

    def read_run(self, run_id: str) -> records.RunRecord:
        """Read a run; raises RunNotFound."""
        run = self._t.run(run_id)
        record = run.record(self._t.scopes[run_id, run.ticket.root].context, self._t.spent_by(run_id))
        waits = self._t.waiting_runs.get(run_id)
        waits_for = None if waits is None else self._admission.waits_for(waits)
        return replace(record, status=self.status(run_id), waits_for=waits_for)

    def read_attempts(self, run_id: str) -> list[records.AttemptRecord]:
        """Read a run's attempts in the order they were made."""
        spent = defaultdict(list)
        for (key, _, _), usage in self._t.spends.items():
            spent[key].append(usage)
        held = self._t.reservations
        return [
            row.record(spent[str(row.key)], held.get(str(row.key), {}).values()) for row in self._t.attempts_of(run_id)
        ]

    def read_scopes(self, run_id: str) -> list[records.ScopeRecord]:
        """Read a run's scopes in the order they were opened."""
        found = []
        for scope in self._t.scopes_of(run_id):
            children = self._t.child_runs_of(run_id, scope.address)
            found.append(scope.record([usage for each in children for usage in self._t.spent_by(each.ticket.run)]))
        return sorted(found, key=lambda scope: (scope.opened_at, scope.address))

    def read_children(self, run_id: str) -> list[records.RunRecord]:
        """Read a run's child runs in the order they were begun."""
        return [self.read_run(child.ticket.run) for child in self._t.child_runs_of(run_id)]

    def read_questions(self, run_id: str) -> list[Approval]:
        """Read the questions to people of a run and its child runs, open and closed, in the order they were asked."""
        rows = [row for row in self._t.family_of(run_id) if row.question is not None and row.event is None]
        return [self._t.approval(row) for row in sorted(rows, key=lambda row: row.created_at)]

    def status(self, run_id: str) -> str:
        """Return a run's visible status: `paused` with an open question, in it or its child runs, and nothing that can run."""
        status, rows = self._t.run(run_id).status, self._t.family_of(run_id)
        is_paused = {row.status for row in rows if row.is_live and not row.is_held} == {"paused"}
        return "paused" if is_paused and status in ("queued", "running") else status

    def read_events(self, run_id: str) -> list[records.EventRecord]:
        return [event for event in self._t.events if event.run_id == run_id]

    def waiting(self) -> list[float]:
        """Return when the rows that wait to be published become due, in unix seconds."""
        ready = [row for row in self._t.attempts.values() if row.status == "ready" and row.available_at < inf]
        rows = [row for row in ready if row.key.run not in self._t.waiting_runs]
        due = [row.available_at for row in rows if self._t.may_run(self._t.runs[row.key.run])]
        return due + self._admission.admissible_at()

    def ends(self) -> list[float]:
        """Return when open questions expire and live runs pass their deadline, in unix seconds."""
        live = [run for run in self._t.runs.values() if self._t.may_merge(run)]
        questions = [row for row in self._t.attempts.values() if row.status == "paused" and row.available_at < inf]
        expiries = [row.available_at for row in questions if self._t.may_merge(self._t.runs[row.key.run])]
        return expiries + [run.ticket.deadline for run in live if run.ticket.deadline is not None]

    def gone_at(self) -> list[float]:
        """Return when messages that are out are taken for lost if no queue holds them, in unix seconds."""
        queued = [row for row in self._t.attempts.values() if row.status == "queued"]
        return [row.sent_at + row.patience_s for row in queued if self._t.may_run(self._t.runs[row.key.run])]

    def is_waiting(self, run_id: str) -> bool:
        return run_id in self._t.waiting_runs
