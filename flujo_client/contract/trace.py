"""A run's trace as a tree: run → step → attempt, with the events where they happened. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from flujo_client.contract.run import AttemptRecord, EventRecord, RunRecord


class TraceEvent(BaseModel):
    """One line of the story, `offset_s` seconds after the run was enqueued."""

    name: str
    level: str = "info"
    offset_s: float = 0.0
    data: dict[str, Any] = Field(default_factory=dict)


class TraceNode(BaseModel):
    """One place in the trace. `offset_s` and `duration_s` are seconds; a duration of None has not ended."""

    name: str
    kind: str
    status: str
    offset_s: float = 0.0
    duration_s: float | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    events: list[TraceEvent] = Field(default_factory=list)
    children: list[TraceNode] = Field(default_factory=list)


def build_trace(run: RunRecord, attempts: Sequence[AttemptRecord], events: Sequence[EventRecord]) -> TraceNode:
    """Make the tree of a run's rows (M-290…M-292)."""
    told: dict[str | None, list[TraceEvent]] = {}
    for event in events:
        line = TraceEvent(
            name=event.name, level=event.level, offset_s=_seconds(run.created_at, event.at) or 0.0, data=event.data
        )
        told.setdefault(event.attempt, []).append(line)
    steps = [list(tries) for _, tries in groupby(attempts, key=lambda each: (each.address, each.step))]
    return TraceNode(
        name=run.name,
        kind="run",
        status=run.status,
        duration_s=_seconds(run.created_at, run.ended_at),
        attributes=_set(id=run.id, reason=run.reason, tokens=run.tokens, cost_usd=run.cost_usd),
        events=told.get(None, []),
        children=[_step(run, tries, told) for tries in steps],
    )


def _step(run: RunRecord, tries: list[AttemptRecord], told: dict[str | None, list[TraceEvent]]) -> TraceNode:
    last = tries[-1]
    return TraceNode(
        name=last.step,
        kind="step",
        status=last.status,
        offset_s=_seconds(run.created_at, tries[0].created_at) or 0.0,
        duration_s=_seconds(tries[0].created_at, last.ended_at),
        attributes=_set(attempts=last.number),
        children=[_attempt(run, each, told) for each in tries],
    )


def _attempt(run: RunRecord, row: AttemptRecord, told: dict[str | None, list[TraceEvent]]) -> TraceNode:
    return TraceNode(
        name=f"attempt {row.number}",
        kind="attempt",
        status=row.status,
        offset_s=_seconds(run.created_at, row.started_at or row.created_at) or 0.0,
        duration_s=row.latency_s if row.ended_at is not None else None,
        attributes=_set(
            key=row.key,
            worker=row.worker,
            reason=row.reason,
            feedback=row.fault.feedback if row.fault else None,
            tokens=row.tokens,
            cost_usd=row.cost_usd,
            deliveries=row.fence if row.fence > 1 else None,
        ),
        events=told.get(row.key, []),
    )


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else max(0.0, (end - start).total_seconds())


def _set(**attributes: Any) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value}
