"""Bind statements: decisions, events and spends as parameters. Pure.

A decision that moves one scope and makes one row at most is bound for `conclude.sql`, which every step takes; any other one for
`conclude_tree.sql`, which does the same with arrays. Each entity has a class of `entities.py`, and its parameters are named after the fields.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.address import AttemptKey
from flujo_client.serial import safe_serialize, storable_text, stored_safely
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.budget import Amount
from flujo_worker.store.postgres.entities import NewAttempt, NewChildRun, NewCorrection, NewScope, ScopeUpdate
from flujo_worker.store.shared_rules import given_lanes, grace_s, held_branches, published

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from _typeshed import DataclassInstance

    from flujo_client.contract.outcome import Correction, Event, Fault, Usage
    from flujo_client.serial import Packed
    from flujo_worker.domain.values import (
        AttemptReport,
        BranchClosed,
        ChildRun,
        CreateScope,
        Decision,
        EndRun,
        NextAttempt,
        SlotReleased,
        UpdateScope,
    )


def is_plain(decision: Decision) -> bool:
    """Tell whether a decision is an ordinary step's: it moves its own scope, and one attempt at most follows."""
    many = max(len(decision.moves), len(decision.next), len(decision.begun)) > 1
    reaches = many or decision.opens or decision.branch_end
    move = decision.move
    marks = move.drops_context or move.patch or move.fault or move.metadata or decision.answers
    return not (reaches or marks or any(each.held or each.status != "ready" for each in decision.next))


def bind_decision(decision: Decision) -> dict[str, Any]:
    """Give the parameters of `conclude.sql`."""
    move = decision.move
    return {
        **_bind_close(decision),
        "address": move.address,
        "version": move.version,
        "cursor": move.cursor,
        "scope_status": move.status,
        "merges": int(move.merges),
        "output": _bytes(move.output),
        "context": _bytes(move.context),
        "begins": bool(decision.begun),
        "begins_anew": any(each.context is not None for each in decision.begun),
        **_bind_one(decision),
    }


def bind_tree(decision: Decision) -> dict[str, Any]:
    """Give the parameters of `conclude_tree.sql`."""
    run, grace = decision.notice.envelope.ticket.run, grace_s(published(decision))
    held = held_branches(decision)
    return {
        **_bind_close(decision),
        "answers": stored_safely(decision.answers) if decision.answers else None,
        **_columns("move", ScopeUpdate, [_update(each) for each in decision.moves]),
        **_columns("open", NewScope, [_new_scope(each, held) for each in decision.opens]),
        **_columns("next", NewAttempt, [_new_attempt(run, each, grace) for each in decision.next]),
        "begun_places": [each.place for each in decision.begun],
        "begun_contexts": [_bytes(each.context) for each in decision.begun],
        **_bind_branch_end(decision.branch_end),
        **_bind_child_run(decision.child_run),
    }


def bind_lane_left(decision: Decision, left: SlotReleased) -> dict[str, Any]:
    """Give the parameters of `leave_lane.sql`."""
    return {
        "run": decision.notice.envelope.ticket.run,
        "fan_out": left.fan_out,
        "lane": left.lane,
        "no_lane": NO_LANE,
        "addresses": list(left.addresses),
        "grace_s": grace_s(1),
    }


def bind_corrections(notice: AttemptReport) -> dict[str, Any]:
    """Give the parameters of `record_corrections.sql`."""
    return {
        "run": notice.envelope.ticket.run,
        "key": notice.envelope.key,
        "fence": notice.fence,
        **_columns("correction", NewCorrection, [_correction(each) for each in notice.outcome.corrections]),
    }


def bind_settlement(notice: AttemptReport) -> dict[str, Any]:
    """Give the parameters of `settle.sql` for an outcome that is merged. A lost attempt may have spent, and keeps what it holds."""
    envelope, outcome = notice.envelope, notice.outcome
    return {
        **bind_spend(envelope.ticket.run, envelope.key, notice.fence, outcome.usage),
        "releases": outcome.kind != "lost",
    }


def bind_spend(run: str, key: str, fence: int, usage: Usage) -> dict[str, Any]:
    """Give the parameters of `settle.sql` for an outcome that is not merged."""
    spent_usd = Amount.of(usage).usd
    return {"run": run, "key": key, "fence": fence, "releases": True, "spent_usd": spent_usd, **bind_usage(usage)}


def bind_usage(usage: Usage) -> dict[str, Any]:
    """Give the parameters that record what was spent."""
    return {
        "spends": not usage.is_nothing,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "requests": usage.requests,
        "cost_usd": usage.cost_usd,
    }


def bind_events(events: Sequence[Event]) -> dict[str, Any]:
    """Give the parameters that append events."""
    return {
        "event_names": [as_text(event.name) for event in events],
        "event_levels": [event.level for event in events],
        "event_data": [shown(event.data) for event in events],
        "event_at": [event.at for event in events],
    }


def shown(tree: Any) -> str:
    """Write as JSON what people are shown and no code reads back: whatever it is, within bounds (M-428)."""
    return orjson.dumps(safe_serialize(tree)).decode()


def as_text(text: str) -> str:
    """Text that a text column takes, whatever is in it (M-428)."""
    return storable_text(text)


def _bind_close(decision: Decision) -> dict[str, Any]:
    """What every decision has: the attempt's end, the story, the spend and perhaps the run's end."""
    notice, outcome = decision.notice, decision.notice.outcome
    return {
        "key": notice.envelope.key,
        "run": notice.envelope.ticket.run,
        "fence": notice.fence,
        "status": decision.close.status,
        "reason": decision.close.reason,
        "result": _bytes(outcome.output),
        "error": _fault(outcome.fault),
        "metadata": stored_safely(outcome.metadata) if outcome.metadata else None,
        "latency_s": outcome.latency_s,
        **_bind_end(decision.end),
        **bind_events((*outcome.events, *decision.events)),
        **bind_usage(outcome.usage),
    }


def _bind_end(end: EndRun | None) -> dict[str, Any]:
    if end is None:
        return {"run_status": None, "run_reason": None, "run_error": None, "run_output": None}
    return {
        "run_status": end.status,
        "run_reason": end.reason,
        "run_error": _fault(end.fault),
        "run_output": _bytes(end.output),
    }


def _bind_branch_end(end: BranchClosed | None) -> dict[str, Any]:
    if end is None:
        return {"fan_out": None, "lane": None, "aborts": False, "takes": False, "grace_s": None}
    takes = end.takes and not end.aborts
    return {"fan_out": end.fan_out, "lane": end.lane, "aborts": end.aborts, "takes": takes, "grace_s": grace_s(1)}


def _bind_child_run(child: ChildRun | None) -> dict[str, Any]:
    return _named("child", NewChildRun, None if child is None else _new_child_run(child))


def _bind_one(decision: Decision) -> dict[str, Any]:
    run = decision.notice.envelope.ticket.run
    row = _new_attempt(run, decision.next[0], grace_s(1)) if decision.next else None
    return _named("next", NewAttempt, row)


def _columns(prefix: str, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> dict[str, list[Any]]:
    """Give one array for each field of the rows' class, all empty when there is no row."""
    return {f"{prefix}_{each.name}": [getattr(row, each.name) for row in rows] for each in fields(kind)}


def _named(prefix: str, kind: type[DataclassInstance], row: DataclassInstance | None) -> dict[str, Any]:
    """Give one parameter for each field of a row's class, all None when there is no row."""
    return {f"{prefix}_{each.name}": None if row is None else getattr(row, each.name) for each in fields(kind)}


def _update(move: UpdateScope) -> ScopeUpdate:
    return ScopeUpdate(
        address=move.address,
        seen=move.version,
        cursor=move.cursor,
        status=move.status,
        merges=int(move.merges),
        output=_bytes(move.output),
        context=_bytes(move.context),
        drops=move.drops_context,
        patch=_bytes(move.patch),
        error=_fault(move.fault),
        metadata=stored_safely(move.metadata),
    )


def _new_scope(opening: CreateScope, held: Collection[str]) -> NewScope:
    return NewScope(
        address=opening.address,
        parent=opening.parent,
        kind=opening.kind,
        step=opening.step,
        name=opening.name,
        place=opening.place,
        output=_bytes(opening.output),
        context=_bytes(opening.context),
        lanes=stored_safely(given_lanes(opening, held)),
        cursor=opening.cursor,
        status=opening.status,
        waiting=opening.waiting,
        held=opening.address in held,
        error=_fault(opening.fault),
        metadata=stored_safely(opening.metadata),
    )


def _new_attempt(run: str, following: NextAttempt, grace: float) -> NewAttempt:
    """Make a work row. Held, or a question that does not expire: the time when it becomes due is not known."""
    waits = following.held or (following.question is not None and not following.delay_s)
    return NewAttempt(
        key=str(AttemptKey(run, following.address, following.step, following.number, following.kind)),
        address=following.address,
        step=following.step,
        number=following.number,
        kind=following.kind,
        queue=following.queue,
        after_s=None if waits else following.delay_s or grace,
        guidance=_text(following.guidance),
        question=None if following.question is None else stored_safely(following.question),
        status=following.status,
        error=_fault(following.fault),
    )


def _new_child_run(child: ChildRun) -> NewChildRun:
    first = child.first
    return NewChildRun(
        run=child.run,
        at=child.parent_address,
        name=as_text(child.name),
        input=bytes(first.input),
        digest=first.input.digest,
        deadline=child.ticket.deadline,
        limits=None if child.ticket.limits is None else stored_safely(dict(child.ticket.limits)),
        root=first.address,
        context=_bytes(first.context),
        key=str(AttemptKey(child.run, first.address, first.step, first.number, first.kind)),
        step=first.step,
        kind=first.kind,
        queue=first.queue,
        after_s=grace_s(1),
    )


def _correction(correction: Correction) -> NewCorrection:
    return NewCorrection(
        step_name=as_text(correction.step_name),
        agent_id=_text(correction.agent_id),
        provider_model=_text(correction.provider_model),
        schema_hash=_text(correction.schema_hash),
        policy_version=as_text(correction.policy_version),
        stage=as_text(correction.stage),
        repair_depth=correction.repair_depth,
        transforms=stored_safely(list(correction.transforms)),
        latency_ms_saved=correction.latency_ms_saved,
    )


def _text(text: str | None) -> str | None:
    return None if text is None else as_text(text)


def _bytes(packed: Packed | None) -> bytes | None:
    return None if packed is None else bytes(packed)


def _fault(fault: Fault | None) -> str | None:
    return None if fault is None else stored_safely(fault.to_tree())
