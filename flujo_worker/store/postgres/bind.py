"""Bind statements: decisions, events and spends as parameters. Pure.

Each entity has a class of `entities.py`, and its parameters are named after the fields.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from flujo_client.serial import stored_safely
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.budget import Amount
from flujo_worker.store.postgres.entities import (
    EndedAttempt,
    EndedRun,
    NewAttempt,
    NewCheckpoint,
    NewChildRun,
    NewCorrection,
    NewEvent,
    NewScope,
    ScopeUpdate,
)
from flujo_worker.store.postgres.make_entities import (
    as_text,
    checkpoint,
    correction,
    ended_attempt,
    ended_run,
    event,
    new_attempt,
    new_child_run,
    new_scope,
    scope_update,
    shown,
)
from flujo_worker.store.shared_rules import grace_s, held_branches, published

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from flujo_client.contract.outcome import Event, Usage
    from flujo_worker.domain.values import AttemptReport, BranchClosed, Decision, SlotReleased


def bind_deferral(
    key: str, fence: int, claim_id: str | None, delay_s: float, event: Event | None, waits_for: str | None = None
) -> dict[str, Any]:
    """Return the parameters of `defer.sql`, and of `return_starved.sql`."""
    return {
        "key": key,
        "fence": fence,
        "claim_id": claim_id,
        "delay_s": delay_s,
        "waits_for": waits_for and as_text(waits_for),
        "name": event and as_text(event.name),
        "level": event and event.level,
        "data": event and shown(event.data),
    }


def bind_decision(decision: Decision) -> dict[str, Any]:
    """Return the parameters of `conclude.sql`. What follows is not claimed if it has to reserve: that takes a group."""
    following = [replace(each, claimed_by=None) if each.to_reserve else each for each in decision.next]
    run, grace = decision.notice.envelope.ticket.run, grace_s(published(decision))
    held = held_branches(decision)
    return {
        **_fields(EndedAttempt, ended_attempt(decision)),
        **_named("run", EndedRun, None if decision.end is None else ended_run(decision.end)),
        **placed("event", NewEvent, [[event(each) for each in events_of(decision)]]),
        **bind_usage(decision.notice.outcome.usage),
        "answers": stored_safely(decision.answers) if decision.answers else None,
        **columns("move", ScopeUpdate, [scope_update(each) for each in decision.moves]),
        **columns("open", NewScope, [new_scope(each, held) for each in decision.opens]),
        **placed("next", NewAttempt, [[new_attempt(run, each, grace) for each in following]]),
        **placed("begun", NewCheckpoint, [[checkpoint(each) for each in decision.begun]]),
        **_bind_branch_end(decision.branch_end),
        **_named("child", NewChildRun, None if decision.child_run is None else new_child_run(decision.child_run)),
    }


def bind_lane_left(decision: Decision, left: SlotReleased) -> dict[str, Any]:
    """Return the parameters of `leave_lane.sql`."""
    return {
        "run": decision.notice.envelope.ticket.run,
        "fan_out": left.fan_out,
        "lane": left.lane,
        "no_lane": NO_LANE,
        "addresses": list(left.addresses),
        "grace_s": grace_s(1),
    }


def bind_corrections(notices: Sequence[AttemptReport]) -> dict[str, Any]:
    """Return the parameters of `record_corrections.sql`."""
    rows = [[correction(each) for each in notice.outcome.corrections] for notice in notices]
    return {"key": [each.envelope.key for each in notices], **placed("correction", NewCorrection, rows)}


def bind_settlement(notice: AttemptReport) -> dict[str, Any]:
    """Return the parameters of `settle.sql` for an outcome that is merged. A lost attempt may have spent, and retains its reservation."""
    envelope, outcome = notice.envelope, notice.outcome
    return {
        **bind_spend(envelope.ticket.run, envelope.key, notice.fence, outcome.usage, notice.claim_id),
        "releases": outcome.kind != "lost",
    }


def bind_spend(run: str, key: str, fence: int, usage: Usage, claim_id: str | None) -> dict[str, Any]:
    """Return the parameters of `settle.sql` for an outcome that is not merged."""
    spent_usd = Amount.of(usage).usd
    claim = {"run": run, "key": key, "fence": fence, "claim_id": claim_id}
    return {**claim, "releases": True, "spent_usd": spent_usd, **bind_usage(usage)}


def bind_usage(usage: Usage) -> dict[str, Any]:
    """Return the parameters that record what was spent."""
    return {
        "spends": not usage.is_nothing,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "requests": usage.requests,
        "cost_usd": usage.cost_usd,
    }


def events_of(decision: Decision) -> Sequence[Event]:
    """Return the events that a decision adds."""
    return (*decision.notice.outcome.events, *decision.events)


def _bind_branch_end(end: BranchClosed | None) -> dict[str, Any]:
    if end is None:
        return {"fan_out": None, "lane": None, "aborts": False, "takes": False, "grace_s": None}
    takes = end.takes and not end.aborts
    return {"fan_out": end.fan_out, "lane": end.lane, "aborts": end.aborts, "takes": takes, "grace_s": grace_s(1)}


def columns(prefix: str, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> dict[str, list[Any]]:
    """Return one array for each field of the rows' class, all empty when there is no row."""
    return {name: [value(row) for row in rows] for name, value in _parameters(prefix, kind)}


@cache
def _parameters(prefix: str, kind: type[DataclassInstance]) -> list[tuple[str, Callable[[DataclassInstance], Any]]]:
    """Pair each field's parameter with what reads it: each merge reads all fields of all classes."""
    return [(f"{prefix}_{each.name}", attrgetter(each.name)) for each in fields(kind)]


def placed(
    prefix: str, kind: type[DataclassInstance], decisions: Sequence[Sequence[DataclassInstance]]
) -> dict[str, list[Any]]:
    """Return such arrays of the rows of several decisions; `<prefix>_of` has the number of each row's decision, from 1."""
    of = [number for number, rows in enumerate(decisions, 1) for _ in rows]
    return {f"{prefix}_of": of, **columns(prefix, kind, [row for rows in decisions for row in rows])}


def _named(prefix: str, kind: type[DataclassInstance], row: DataclassInstance | None) -> dict[str, Any]:
    """Return one parameter for each field of a row's class, all None when there is no row."""
    return {f"{prefix}_{each.name}": None if row is None else getattr(row, each.name) for each in fields(kind)}


def _fields(kind: type[DataclassInstance], row: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a row under their own names."""
    return {each.name: getattr(row, each.name) for each in fields(kind)}
