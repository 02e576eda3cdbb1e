"""The queries of clients and tests on the store in memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf

from flujo_client.contract.approval import Approval
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import (
    AttemptRecord,
    AttemptValues,
    CorrectionRecord,
    EventRecord,
    NoticeRecord,
    Recording,
    RunRecord,
    RunSummary,
    ScopeRecord,
)
from flujo_worker.domain.budget import Budget
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.tables import InMemory, Tables


class ReadsInMemory(InMemory):
    """Reads runs."""

    def __init__(self, tables: Tables, admission: AdmissionInMemory) -> None:
        super().__init__(tables)
        self._admission = admission

    def read_run(self, run_id: str) -> RunRecord:
        """Read a run; raises RunNotFound."""
        run = self._t.run(run_id)
        record = run.record(self._t.scopes[run_id, run.ticket.root].context, self._t.spent_by(run_id))
        waits = self._t.waiting_runs.get(run_id)
        return replace(
            record, status=self.status(run_id), waits_for=None if waits is None else self._admission.waits_for(waits)
        )

    def read_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Read a run's attempts in the order they were made."""
        spent = defaultdict(list)
        for (key, _, _), usage in self._t.spends.items():
            spent[key].append(usage)
        held = self._t.reservations
        return [
            row.record(spent[str(row.key)], held.get(str(row.key), {}).values()) for row in self._t.attempts_of(run_id)
        ]

    def read_attempt_values(self, key: str) -> AttemptValues:
        """Read an attempt's values."""
        row = self._t.attempts[key]
        return AttemptValues(row.input, row.output, row.model_answer)

    def read_scopes(self, run_id: str) -> list[ScopeRecord]:
        """Read a run's scopes in the order they were opened."""
        found = [scope.record(self._spent_at(run_id, scope.address)) for scope in self._t.scopes_of(run_id)]
        return sorted(found, key=lambda scope: (scope.opened_at, scope.address))

    def read_children(self, run_id: str) -> list[RunRecord]:
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

    def read_events(self, run_id: str) -> list[EventRecord]:
        """Read a run's events."""
        return [event for event in self._t.events if event.run_id == run_id]

    def read_recording(self, run_id: str) -> Recording:
        """Read what a run began with, for its replay."""
        run = self._t.run(run_id)
        ticket, has_context = run.ticket, self._t.scopes[run_id, run.ticket.root].context is not None
        return Recording(
            id=run_id,
            status=run.status,
            reference=ticket.reference,
            fingerprint=ticket.fingerprint,
            queue=ticket.queue,
            tenant=ticket.tenant,
            root=ticket.root,
            from_step=run.forked[1] if run.forked else None,
            plan=run.plan,
            has_context=has_context,
        )

    def read_notices(self, run_id: str) -> list[NoticeRecord]:
        """Read the outcomes that a run's coordinators received, in the order of their commits."""
        concluded = [row for row in self._t.attempts_of(run_id) if "taken_over_from" not in row.metadata]
        rows = sorted(concluded, key=lambda row: inf if row.ended_at is None else row.ended_at)
        made = {str(row.key): number for number, row in enumerate(concluded, 1)}
        return [row.notice(made[str(row.key)]) for row in rows]

    def read_system_events(self) -> list[EventRecord]:
        """Read the events of workers."""
        return [event for event in self._t.events if event.run_id is None]

    def read_corrections(self, run_id: str) -> list[CorrectionRecord]:
        """Read a run's entries in the correction ledger."""
        return [each for each in self._t.corrections if each.run_id == run_id]

    def read_budgets(self) -> dict[str, Budget]:
        """Read all budgets, by scope."""
        return dict(self._t.budgets)

    def read_deleted_runs(self) -> list[RunSummary]:
        """Return the summaries of deleted runs, the last to end first."""
        return sorted(self._t.summaries.values(), key=lambda each: (each.ended_at, each.id), reverse=True)

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
        """Return whether a run was recorded and not admitted yet."""
        return run_id in self._t.waiting_runs

    def _spent_at(self, run_id: str, address: str) -> list[Usage]:
        children = self._t.child_runs_of(run_id, address)
        return [usage for child in children for usage in self._t.spent_by(child.ticket.run)]
