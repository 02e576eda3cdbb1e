"""Bind statements: decisions, events and spends as parameters. Pure. The parameters of each row are named after the columns in `entities.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flujo_client.serial import storable_text, stored_safely
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.budget import Amount
from flujo_worker.store.postgres import entities
from flujo_worker.store.postgres.entities import Columns, shown
from flujo_worker.store.shared_rules import due_after_s, given_lanes, grace_s, held_branches, published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.outcome import Event, Usage
    from flujo_worker.domain.values import AttemptReport, BranchClosed, Decision, SlotReleased
    from flujo_worker.ports import ClaimId


def bind_deferral(claim: ClaimId, delay_s: float, event: Event | None, waits_for: str | None = None) -> dict[str, Any]:
    """Return the parameters of `defer.sql`, and of `return_starved.sql`."""
    name, data = (storable_text(event.name), shown(event.data)) if event else (None, None)
    story = {"name": name, "level": event and event.level, "data": data}
    return {**claim._asdict(), "delay_s": delay_s, "waits_for": waits_for and storable_text(waits_for), **story}


def bind_decision(decision: Decision) -> dict[str, Any]:
    """Return the parameters of `conclude.sql`. What follows is not claimed if it has to reserve: that takes a group."""
    following = [replace(each, claimed_by=None) if each.to_reserve else each for each in decision.next]
    held = held_branches(decision)
    return {
        **{name: read(decision) for name, read in entities.ENDED_ATTEMPT.items()},
        **placed("run", entities.ENDED_RUN, [[] if decision.end is None else [decision.end]]),
        **placed("event", entities.NEW_EVENT, [events_of(decision)]),
        **bind_spends([decision.notice.outcome.usage]),
        "answers": stored_safely(decision.answers) if decision.answers else None,
        "around": list(decision.notice.envelope.lanes),
        **columns("move", entities.SCOPE_UPDATE, decision.moves),
        **columns("open", entities.NEW_SCOPE, decision.opens),
        "open_lanes": [stored_safely(given_lanes(each, held)) for each in decision.opens],
        "open_held": [each.address in held for each in decision.opens],
        **bind_next([replace(decision, next=tuple(following))]),
        **placed("begun", entities.NEW_CHECKPOINT, [decision.begun]),
        **columns("stored", entities.STORED_VALUE, decision.stored),
        **_bind_branch_end(decision.branch_end),
        **_named("child", entities.NEW_CHILD_RUN, decision.child_run),
        "child_after_s": grace_s(1),
    }


def bind_next(decisions: Sequence[Decision]) -> dict[str, Any]:
    rows = [(each.notice.envelope.ticket.run, grace_s(published(each)), each.next) for each in decisions]
    return {
        **placed("next", entities.NEW_ATTEMPT, [each.next for each in decisions]),
        "next_key": [each.key_in(run) for run, _, following in rows for each in following],
        "next_after_s": [due_after_s(each, grace) for _, grace, following in rows for each in following],
    }


def bind_lane_left(decision: Decision, left: SlotReleased) -> dict[str, Any]:
    """Return the parameters of `leave_lane.sql`."""
    run, addresses = decision.notice.envelope.ticket.run, list(left.addresses)
    lanes = {"fan_out": left.fan_out, "lane": left.lane, "no_lane": NO_LANE}
    return {"run": run, "addresses": addresses, "grace_s": grace_s(1), **lanes}


def bind_corrections(notices: Sequence[AttemptReport]) -> dict[str, Any]:
    """Return the parameters of `record_corrections.sql`."""
    rows = [each.outcome.corrections for each in notices]
    return {"key": [each.envelope.key for each in notices], **placed("correction", entities.NEW_CORRECTION, rows)}


def bind_spends(usages: Sequence[Usage]) -> dict[str, Any]:
    """Return the parameters that record and book the spends of attempts."""
    rows = [[] if usage.is_nothing else [usage] for usage in usages]
    booked = [str(Amount.of(usage).usd) for usage in usages if not usage.is_nothing]
    return placed("spend", entities.NEW_SPEND, rows) | {"spent_usd": booked}


def events_of(decision: Decision) -> Sequence[Event]:
    return (*decision.notice.outcome.events, *decision.events)


def _bind_branch_end(end: BranchClosed | None) -> dict[str, Any]:
    if end is None:
        return {"fan_out": None, "lane": None, "aborts": False, "takes": False, "grace_s": None}
    takes = end.takes and not end.aborts
    return {"fan_out": end.fan_out, "lane": end.lane, "aborts": end.aborts, "takes": takes, "grace_s": grace_s(1)}


def columns(prefix: str, kind: Columns, rows: Sequence[object]) -> dict[str, list[Any]]:
    """Return one array for each column, all empty when there is no row."""
    return {f"{prefix}_{name}": [read(row) for row in rows] for name, read in kind.items()}


def placed(prefix: str, kind: Columns, decisions: Sequence[Sequence[object]]) -> dict[str, list[Any]]:
    """Return such arrays of the rows of several decisions; `<prefix>_of` has the number of each row's decision, from 1."""
    of = [number for number, rows in enumerate(decisions, 1) for _ in rows]
    return {f"{prefix}_of": of, **columns(prefix, kind, [row for rows in decisions for row in rows])}


def _named(prefix: str, kind: Columns, row: object) -> dict[str, Any]:
    """Return one parameter for each column, all None when there is no row."""
    return {f"{prefix}_{name}": None if row is None else read(row) for name, read in kind.items()}
