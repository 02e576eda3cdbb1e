"""Retention in memory: the same families, rules and ages as in Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from flujo_client.address import AttemptKey
from flujo_client.contract.records import RunSummary
from flujo_client.serial import Packed
from flujo_worker.domain.retention import RetentionRule, older_s
from flujo_worker.store.memory.rows import StoredRun, when, when_or_none
from flujo_worker.store.memory.tables import Tables

_TENANT_DAY: Final = re.compile(r"tenant:.*:\d{4}-\d\d-\d\d")


class RetentionInMemory(Tables):
    """The port `Retention`."""

    def begin_pruning(self, every_s: float) -> bool:
        with self._lock:
            is_due = self._pruned_at <= self._clock() - every_s
            if is_due:
                self._pruned_at = self._clock()
            return is_due

    def prune_runs(self, rules: Sequence[RetentionRule], limit: int, *, is_summarized: bool = False) -> list[str]:
        with self._lock:
            gone: list[str] = []
            roots = [run for run in self._runs.values() if run.parent is None]
            for root in sorted(roots, key=lambda run: run.ended_at or 0.0):
                family = self._family_from(root)
                if len(gone) < limit and self._is_aged(root, family, rules):
                    gone += [run.ticket.run for run in family]
            if is_summarized:
                self._summaries |= {run: self._summary(self._runs[run]) for run in gone}
            self._forget(set(gone))
            return gone

    def prune_summaries(self, older_s: float, limit: int) -> None:
        with self._lock:
            since = when(self._clock() - older_s)
            aged = sorted(
                (each for each in self._summaries.values() if each.ended_at < since), key=lambda each: each.ended_at
            )
            for summary in aged[:limit]:
                del self._summaries[summary.id]

    def read_deleted_runs(self) -> list[RunSummary]:
        """Return the summaries of deleted runs, the last to end first."""
        with self._lock:
            return sorted(self._summaries.values(), key=lambda each: (each.ended_at, each.id), reverse=True)

    def sweep_blobs(self, limit: int, *, every_s: float, unused_s: float) -> bool:  # noqa: ARG002 - one step does it all
        with self._lock:
            now = self._clock()
            if self._marked_at < now - every_s:
                self._marked_at = now
                used = {value.digest for value in self._values() if value is not None and value.is_reference}
                for digest in [each for each in self._blobs if each not in used]:
                    if self._touched[digest] < now - unused_s:
                        del self._blobs[digest], self._touched[digest]
            return False

    def prune_bookkeeping(self, older_s: float) -> int:
        with self._lock:
            since = self._clock() - older_s
            workers = [worker for worker, until in self._leases.items() if until < since]
            newest = max(self._epochs.values(), default=0.0)
            epochs = [epoch for epoch, start in self._epochs.items() if start < min(since, newest)]
            day = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d}"
            budgets = [scope for scope in self._budgets if _TENANT_DAY.fullmatch(scope) and scope[-10:] < day]
            for worker in workers:
                del self._leases[worker]
                self._members.pop(worker, None)
            for epoch in epochs:
                del self._epochs[epoch]
            for scope in budgets:
                del self._budgets[scope]
            return len(workers) + len(epochs) + len(budgets)

    def _summary(self, run: StoredRun) -> RunSummary:
        spent = self._spent_by(run.ticket.run)
        return RunSummary(
            id=run.ticket.run,
            name=run.name,
            tenant=run.ticket.tenant,
            status=run.status,
            created_at=when(run.created_at),
            started_at=when_or_none(run.started_at),
            ended_at=when(run.ended_at or 0.0),
            parent_run=None if run.parent is None else run.parent[0],
            tokens=sum(usage.input_tokens + usage.output_tokens for usage in spent),
            cost_usd=sum(usage.cost_usd for usage in spent),
        )

    def _values(self) -> Iterator[Packed | None]:
        for run in self._runs.values():
            yield from (run.input, run.output, run.launched_with)
        for scope in self._scopes.values():
            yield from (scope.output, scope.context, scope.patch)
        for row in self._attempts.values():
            yield from (row.output, None if row.answer is None else row.answer.value)
        yield from self._contexts.values()

    def _family_from(self, run: StoredRun) -> list[StoredRun]:
        children = self._child_runs_of(run.ticket.run)
        return [run, *(each for child in children for each in self._family_from(child))]

    def _is_aged(self, root: StoredRun, family: Sequence[StoredRun], rules: Sequence[RetentionRule]) -> bool:
        age = older_s(rules, root.status, root.name)
        if age is None:
            return False
        since = self._clock() - age
        return all(run.ended_at is not None and run.ended_at < since for run in family)

    def _forget(self, runs: set[str]) -> None:
        for attempt in [key for key, row in self._attempts.items() if row.key.run in runs]:
            del self._attempts[attempt]
            self._reservations.pop(attempt, None)
            self._permits.pop(attempt, None)
        for place in [place for place in self._scopes if place[0] in runs]:
            del self._scopes[place]
            self._rows_at.pop(place, None)
            self._children.pop(place, None)
        for claim in [claim for claim in self._spends if AttemptKey.parse(claim[0]).run in runs]:
            del self._spends[claim]
        for context in [context for context in self._contexts if context[0] in runs]:
            del self._contexts[context]
        for call in [call for call in self._owed if call[0] in runs]:
            del self._owed[call]
        self._events = [event for event in self._events if event.run_id not in runs]
        self._corrections = [each for each in self._corrections if each.run_id not in runs]
        for run in runs:
            del self._runs[run]
            self._budgets.pop(f"run:{run}", None)
