"""Delete the rows in memory that have outlived their retention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from flujo_client.address import AttemptKey
from flujo_client.contract.records import RunSummary
from flujo_client.serial import Packed
from flujo_worker.domain.retention import RetentionRule
from flujo_worker.domain.units import RecordedUnit
from flujo_worker.ports import PrunedUnits
from flujo_worker.store.memory.rows import StoredRun, recorded, totals, when
from flujo_worker.store.memory.tables import InMemory, Tables
from tests.support.memory_exports import ExportsInMemory

_TENANT_DAY: Final = re.compile(r"tenant:.*:\d{4}-\d\d-\d\d")


class RetentionInMemory(InMemory):
    """The port `RetentionStore`."""

    def __init__(self, tables: Tables, exports: ExportsInMemory) -> None:
        super().__init__(tables)
        self._exports = exports
        self.summaries: dict[str, RunSummary] = {}
        self.pruned_at = self.marked_at = float("-inf")

    def read_deleted_runs(self) -> list[RunSummary]:
        """Return the summaries of deleted runs, the last to end first."""
        return sorted(self.summaries.values(), key=lambda each: (each.ended_at, each.id), reverse=True)

    def begin_pruning(self, every_s: float) -> bool:
        is_due = self.pruned_at <= self._t.clock() - every_s
        if is_due:
            self.pruned_at = self._t.clock()
        return is_due

    def prune_runs(
        self, rules: Sequence[RetentionRule], limit: int, *, is_summarized: bool = False, waits_s: float = 0.0
    ) -> list[str]:
        gone: list[str] = []
        roots = [run for run in self._t.runs.values() if run.parent_run is None]
        for root in sorted(roots, key=lambda run: run.ended_at or 0.0):
            family = self._family_from(root)
            if len(gone) < limit and self._is_aged(root, family, rules, waits_s):
                gone += [run.ticket.run for run in family]
        if is_summarized:
            self.summaries |= {run: self._summary(self._t.runs[run]) for run in gone}
        self._forget(set(gone))
        return gone

    def prune_summaries(self, older_s: float, limit: int) -> None:
        since = when(self._t.clock() - older_s)
        aged = [each for each in self.summaries.values() if each.ended_at < since]
        for summary in sorted(aged, key=lambda each: each.ended_at)[:limit]:
            del self.summaries[summary.id]

    def sweep_blobs(self, limit: int, *, every_s: float, unused_s: float) -> bool:  # one step does it all
        now = self._t.clock()
        if self.marked_at < now - every_s:
            self.marked_at = now
            used = {value.digest for value in self._values() if value is not None and value.is_reference}
            for digest in [each for each in self._t.blobs if each not in used]:
                if self._t.touched[digest] < now - unused_s:
                    del self._t.blobs[digest], self._t.touched[digest]
        return False

    def prune_units(
        self, older_s: float, after: tuple[str, str] = ("", ""), *, places: int, units: int, waits_s: float = 0.0
    ) -> PrunedUnits:
        known = sorted({(run, name.place) for run, name in self._t.units})
        looked_at = [each for each in known if each > after][:places]
        over = [each for each in looked_at if self._is_over(*each, self._aged(older_s, waits_s))]
        for gone in [each for each, row in self._t.batch_requests.items() if (row.given.run, row.given.place) in over]:
            del self._t.batch_requests[gone]
        rows = [(each, row) for each, row in self._t.units.items() if (each[0], each[1].place) in over]
        pruned = [(each, row) for each, row in rows if _is_certain(row) or row.answer or row.asked][:units]
        for each, row in pruned:
            if _is_certain(row):
                del self._t.units[each]
            else:
                self._t.units[each] = replace(row, answer=None, asked=None)
        return PrunedUnits(len(pruned), looked_at[-1] if len(looked_at) == places else None)

    def prune_gates(self) -> None:
        waited_at = {row.gate.name for row in self._t.waiting_runs.values()}
        for name in [name for name in self._t.turns if name not in waited_at and not self._t.places.get(name)]:
            del self._t.turns[name]

    def prune_bookkeeping(self, older_s: float) -> int:
        since = self._t.clock() - older_s
        workers = [worker for worker, until in self._t.leases.items() if until < since]
        newest = max(self._t.epochs.values(), default=0.0)
        epochs = [epoch for epoch, start in self._t.epochs.items() if start < min(since, newest)]
        day = f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d}"
        budgets = [scope for scope in self._t.budgets if _TENANT_DAY.fullmatch(scope) and scope[-10:] < day]
        _delete([self._t.leases, self._t.members], workers)
        _delete([self._t.epochs], epochs)
        _delete([self._t.budgets], budgets)
        return len(workers) + len(epochs) + len(budgets)

    def rotate_event_partitions(self, keep_days: int | None) -> None:
        if keep_days is None:
            return
        first = datetime.fromtimestamp(self._t.clock(), UTC).date() - timedelta(days=keep_days)
        self._t.events[:] = [event for event in self._t.events if event.at.date() >= first]

    def tally(self, lag_s: float = 20.0) -> bool:  # its totals are for readers of Postgres
        return True

    def _is_over(self, run: str, place: str, older_s: float) -> bool:
        """Return whether the step of a place has ended so long ago, and none of its attempts is open."""
        address, step = place.split(":")[:2]
        attempts = [each for each in self._t.attempts_of(run) if (each.key.address, each.key.step) == (address, step)]
        since = self._t.clock() - older_s
        return all(each.ended_at is not None and each.ended_at < since for each in attempts)

    def _aged(self, older_s: float, waits_s: float) -> float:
        """Return the age from which rows are deleted: what is not exported yet waits so much longer."""
        exported = min((each.at.timestamp() for each in self._exports.exported.values()), default=float("inf"))
        return max(older_s, min(self._t.clock() - exported, older_s + waits_s))

    def _summary(self, run: StoredRun) -> RunSummary:
        spent = totals(self._t.spent_by(run.ticket.run))
        return recorded(RunSummary, run, run.ticket, id=run.ticket.run, **spent)

    def _values(self) -> Iterator[Packed | None]:
        for run in self._t.runs.values():
            yield from (run.input, run.output, run.launched_with)
        for scope in self._t.scopes.values():
            yield from (scope.output, scope.context, scope.patch)
        for row in self._t.attempts.values():
            yield from (row.input, row.output, None if row.answer is None else row.answer.value)
        yield from (unit.answer for unit in self._t.units.values())
        yield from self._t.contexts.values()

    def _family_from(self, run: StoredRun) -> list[StoredRun]:
        children = self._t.child_runs_of(run.ticket.run)
        return [run, *(each for child in children for each in self._family_from(child))]

    def _is_aged(
        self, root: StoredRun, family: Sequence[StoredRun], rules: Sequence[RetentionRule], waits_s: float
    ) -> bool:
        age = older_s(rules, root.status, root.name)
        if age is None:
            return False
        since = self._t.clock() - self._aged(age, waits_s)
        return all(run.ended_at is not None and run.ended_at < since for run in family)

    def _forget(self, runs: set[str]) -> None:
        t = self._t
        attempts = [key for key, row in t.attempts.items() if row.key.run in runs]
        t.spends = {claim: usage for claim, usage in t.spends.items() if AttemptKey.parse(claim.key).run not in runs}
        t.batch_requests = {each: row for each, row in t.batch_requests.items() if row.given.run not in runs}
        t.events = [event for event in t.events if event.run_id not in runs]
        t.corrections = [each for each in t.corrections if each.run_id not in runs]
        by_run: list[dict[Any, Any]] = [t.scopes, t.rows_at, t.children, t.units, t.unit_times, t.contexts]
        by_run += [t.sent_events, t.owed]
        _delete([t.attempts, t.reservations, t.permits], attempts)
        for rows in by_run:
            _delete([rows], [key for key in rows if key[0] in runs])
        _delete([t.runs], runs)
        _delete([t.budgets], [f"run:{run}" for run in runs])


def _is_certain(unit: RecordedUnit) -> bool:
    """Return whether it is known how often it was done: what has possibly been done, and paid, stays in lists."""
    return unit.answer is not None and unit.tries == 1


def older_s(rules: Sequence[RetentionRule], status: str, pipeline: str) -> float | None:
    """Return after how many seconds a run is deleted; None: never. A rule for the pipeline goes before the rule for all."""
    ages = {rule.pipeline: rule.older_s for rule in rules if rule.status == status}
    return ages.get(pipeline, ages.get(None))


def _delete(tables: Iterable[dict[Any, Any]], keys: Iterable[Any]) -> None:
    for rows in tables:
        for key in keys:
            rows.pop(key, None)
