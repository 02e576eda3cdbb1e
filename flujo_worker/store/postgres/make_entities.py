"""Make the rows of `entities.py` from the values of a decision. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.address import AttemptKey
from flujo_client.serial import safe_serialize, storable_text, stored_safely
from flujo_worker.store.postgres.entities import (
    EndedAttempt,
    EndedRun,
    NewAttempt,
    NewCheckpoint,
    NewChildRun,
    NewCorrection,
    NewEvent,
    NewScope,
    NewSpend,
    ScopeUpdate,
)
from flujo_worker.store.shared_rules import given_lanes, grace_s

if TYPE_CHECKING:
    from collections.abc import Collection

    from flujo_client.contract.outcome import Correction, Event, Fault, Usage
    from flujo_client.serial import Packed
    from flujo_worker.domain.values import (
        ChildRun,
        Decision,
        EndRun,
        NextAttempt,
        ScopeRow,
        StepCheckpoint,
        UpdateScope,
    )


def ended_attempt(decision: Decision) -> EndedAttempt:
    notice, outcome = decision.notice, decision.notice.outcome
    return EndedAttempt(
        key=notice.envelope.key,
        run=notice.envelope.ticket.run,
        fence=notice.fence,
        claim_id=notice.claim_id,
        status=decision.close.status,
        reason=decision.close.reason,
        result=stored(outcome.output),
        error=_as_json(outcome.fault),
        metadata=stored_safely(outcome.metadata) if outcome.metadata else None,
        latency_s=outcome.latency_s,
        code=None if outcome.code is None else outcome.code.version,
    )


def ended_run(end: EndRun) -> EndedRun:
    return EndedRun(status=end.status, reason=end.reason, error=_as_json(end.fault), output=stored(end.output))


def scope_update(move: UpdateScope) -> ScopeUpdate:
    return ScopeUpdate(
        address=move.address,
        seen=move.version,
        cursor=move.cursor,
        status=move.status,
        merges=int(move.merges),
        output=stored(move.output),
        context=stored(move.context),
        drops=move.drops_context,
        patch=stored(move.patch),
        error=_as_json(move.fault),
        metadata=stored_safely(move.metadata),
    )


def new_scope(opening: ScopeRow, held: Collection[str]) -> NewScope:
    return NewScope(
        address=opening.address,
        parent=opening.parent,
        kind=opening.kind,
        step=opening.step,
        name=opening.name,
        place=opening.place,
        output=stored(opening.output),
        context=stored(opening.context),
        lanes=stored_safely(given_lanes(opening, held)),
        cursor=opening.cursor,
        status=opening.status,
        waiting=opening.waiting,
        held=opening.address in held,
        error=_as_json(opening.fault),
        metadata=stored_safely(opening.metadata),
    )


def new_attempt(run: str, following: NextAttempt, grace: float) -> NewAttempt:
    """Make a work row. Held, or a question that does not expire: the time when it becomes due is not known."""
    waits = following.held or (following.question is not None and not following.delay_s)
    return NewAttempt(
        key=following.key_in(run),
        address=following.address,
        step=following.step,
        number=following.number,
        kind=following.kind,
        queue=following.queue,
        after_s=None if waits else following.delay_s or grace,
        guidance=_text(following.guidance),
        question=None if following.question is None else stored_safely(following.question),
        status=following.status,
        error=_as_json(following.fault),
        claimed_by=following.claimed_by,
    )


def new_child_run(child: ChildRun) -> NewChildRun:
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
        context=stored(first.context),
        key=str(AttemptKey(child.run, first.address, first.step, first.number, first.kind)),
        step=first.step,
        kind=first.kind,
        queue=first.queue,
        after_s=grace_s(1),
    )


def correction(made: Correction) -> NewCorrection:
    return NewCorrection(
        step_name=as_text(made.step_name),
        agent_id=_text(made.agent_id),
        provider_model=_text(made.provider_model),
        schema_hash=_text(made.schema_hash),
        policy_version=as_text(made.policy_version),
        stage=as_text(made.stage),
        repair_depth=made.repair_depth,
        transforms=stored_safely(list(made.transforms)),
        latency_ms_saved=made.latency_ms_saved,
    )


def checkpoint(begun: StepCheckpoint) -> NewCheckpoint:
    return NewCheckpoint(at=begun.place, context=stored(begun.context))


def event(line: Event) -> NewEvent:
    return NewEvent(name=as_text(line.name), level=line.level, data=shown(line.data), at=line.at)


def spend(usage: Usage) -> NewSpend:
    return NewSpend(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        requests=usage.requests,
        cost_usd=usage.cost_usd,
    )


def shown(tree: Any) -> str:
    """Write any value as JSON within bounds, to show it to people; no code reads it back."""
    return orjson.dumps(safe_serialize(tree)).decode()


def as_text(text: str) -> str:
    """Return text that a text column accepts, for any text."""
    return storable_text(text)


def _text(text: str | None) -> str | None:
    return None if text is None else as_text(text)


def stored(packed: Packed | None) -> bytes | None:
    return None if packed is None else bytes(packed)


def _as_json(fault: Fault | None) -> str | None:
    return None if fault is None else stored_safely(fault.to_tree())
