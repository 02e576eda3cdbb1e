"""What traces are exported from, in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from flujo_client.address import STEP
from flujo_client.contract.outcome import Fault, Usage
from flujo_worker.domain.ended import (
    KINDS,
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
from flujo_worker.domain.units import Unit
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, recorded, when
from flujo_worker.store.memory.tables import InMemory, Tables

BEFORE_S = 60.0
"""Seconds before the first export that it covers."""


class ExportsInMemory(InMemory):
    """The port `ExportStore`."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.exporting: tuple[str | None, float] = None, float("-inf")
        self.exported: dict[Kind, Position] = {}
        self.refused_spans = 0

    def begin(self, worker: str, *, patience_s: float, margin_s: float) -> Export | None:
        now, (holder, looked_at) = self._t.clock(), self.exporting
        if holder != worker and self._t.is_leased(holder) and looked_at >= now - patience_s:
            return None
        self.exporting = worker, now
        for kind in KINDS:
            self.exported.setdefault(kind, Position(when(now - BEFORE_S), ""))
        return Export(dict(self.exported), when(now), when(now) - timedelta(seconds=margin_s))

    def ended(self, kind: Kind, since: Position, until: datetime, limit: int) -> list[AnyEnded]:
        rows: dict[Kind, Iterator[AnyEnded]] = {
            "run": self._runs(),
            "scope": self._scopes(),
            "attempt": self._attempts(),
            "unit": self._units(),
        }
        found = [row for row in rows[kind] if row.position > since and row.ended < until]
        return sorted(found, key=lambda row: row.position)[:limit]

    def events(self, attempts: Sequence[EndedAttempt], names: Sequence[str]) -> dict[str, list[AttemptEvent]]:
        keys, found = {each.key for each in attempts}, defaultdict[str, list[AttemptEvent]](list)
        for event in self._t.events:
            if event.attempt in keys and event.name in names:
                found[str(event.attempt)].append(AttemptEvent(event.at, event.name, event.data))
        return found

    def advance(self, worker: str, positions: Mapping[Kind, Position], *, refused: int) -> bool:
        if self.exporting[0] != worker:
            return False
        self.exporting = worker, self._t.clock()
        self.exported, self.refused_spans = dict(positions), self.refused_spans + refused
        return True

    def _runs(self) -> Iterator[EndedRun]:
        for run in self._t.runs.values():
            if run.ended_at is None:
                continue
            others = [("forked_from", run.forked_from), ("parent", run.parent_run)]
            links = [(word, of, self._t.runs[of].ticket.trace_parent) for word, of in others if of in self._t.runs]
            own = _ending(run, run.created_at, run.ended_at, run.fault)
            yield recorded(EndedRun, run, run.plan, **own, key=run.ticket.run, links=links)

    def _scopes(self) -> Iterator[EndedScope]:
        for (run_id, address), scope in self._t.scopes.items():
            if scope.closed_at is None:
                continue
            run = self._t.runs[run_id]
            own = _ending(run, scope.opened_at, scope.closed_at, scope.fault)
            own |= {"key": f"{run_id}:{address}", "reason": scope.closed_by, "name": scope.name or address}
            exit_reason, is_cached = scope.metadata.get("exit_reason"), scope.metadata.get("cache_hit") is True
            yield recorded(EndedScope, scope, **own, exit_reason=exit_reason, is_cached=is_cached)

    def _attempts(self) -> Iterator[EndedAttempt]:
        for row in self._t.attempts.values():
            if row.ended_at is not None:
                yield self._attempt(row, row.ended_at)

    def _attempt(self, row: StoredAttempt, ended: float) -> EndedAttempt:
        run, key = self._t.runs[row.key.run], row.key
        spent = [usage for claim, usage in self._t.spends.items() if claim.key == str(key)]
        place = f"{key.address}:{key.step}"
        places = (place, f"{place}:{row.units_from or key.number}")
        units = [unit for (of, name), unit in self._t.units.items() if of == key.run and name.place in places]
        following = {str(key._replace(number=key.number + 1, kind=kind)) for kind in (STEP, "resume")}
        first = [str(key._replace(number=1, kind=kind)) for kind in (STEP, "resume")]
        began = [self._t.attempts[each].created_at for each in first if each in self._t.attempts]
        around = (key.address, f"{key.address}/{key.step}".lstrip("/"))
        containers = [s.address for s in self._t.scopes_of(key.run) if s.kind != "sequence" and s.address in around]
        asked = row.created_at if row.kind == "resume" else row.started_at or row.created_at
        return recorded(
            EndedAttempt,
            row,
            key,
            **_ending(run, asked, ended, row.fault),
            key=str(key),
            **{**asdict(sum(spent, Usage())), "model": max((each.model for each in spent if each.model), default=None)},
            agent=row.metadata.get("aros.agent_id"),
            is_last=not following & self._t.attempts.keys(),
            step_began=when(min(began)) if began else None,
            container=max(containers, key=len, default=None),
            has_units=bool(units),
            replayed=sum(unit.answer is not None and unit.claim_id != row.claim_id for unit in units),
            unknown=[unit.operation for unit in units if unit.answer is None and unit.key == str(key)],
        )

    def _units(self) -> Iterator[EndedUnit]:
        for (run_id, name), unit in self._t.units.items():
            began, settled = self._t.unit_times[run_id, name]
            if settled is None:
                continue
            claim = unit.key, unit.fence, unit.claim_id
            known = _known(self._t.runs[run_id], began, settled)
            unit_id = Unit(run_id, name, *claim, unit.operation).id
            yield recorded(EndedUnit, unit, unit.usage, **known, key=unit_id, attempt=unit.key)


def _known(run: StoredRun, began: float, ended: float) -> dict[str, Any]:
    ticket = run.ticket
    known = {"run": ticket.run, "trace_parent": ticket.trace_parent, "pipeline": run.name, "tenant": ticket.tenant}
    return {**known, "began": when(began), "ended": when(ended)}


def _ending(run: StoredRun, began: float, ended: float, fault: Fault | None) -> dict[str, Any]:
    feedback, error = (None, None) if fault is None else (fault.feedback, fault.type_name)
    return {**_known(run, began, ended), "feedback": feedback, "error": error, "root": run.ticket.root}
