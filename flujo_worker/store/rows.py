"""Between rows and values: what a decision binds, and what an envelope is rebuilt from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import Envelope, Ticket
from flujo_client.serial import Packed, safe_serialize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flujo_client.contract.outcome import Event, Usage
    from flujo_worker.domain.values import Decision, End, NextAttempt

GRACE_S = 1.0
GRACE_PER_ROW_S = 0.005


def grace_s(rows: int) -> float:
    """Seconds that a tail may take to publish so many rows before the sweeper does; it must not race a long fan-out."""
    return GRACE_S + GRACE_PER_ROW_S * rows


def published(decision: Decision) -> int:
    """How many rows the tail publishes at once."""
    return sum(not each.held and each.delay_s == 0 for each in decision.next)


def given_lanes(decision: Decision) -> list[dict[str, int]]:
    """The lanes of each scope that is opened. A branch that is held has none in its fan-out until one is free for it."""
    held = {each.address for each in decision.next if each.held}
    return [
        {fan_out: lane for fan_out, lane in each.lanes.items() if each.address not in held or fan_out != each.parent}
        for each in decision.opens
    ]


def bind_decision(decision: Decision) -> dict[str, Any]:
    """Give the parameters of `conclude.sql`."""
    notice, move, outcome = decision.notice, decision.move, decision.notice.outcome
    envelope = notice.envelope
    return {
        "key": envelope.key,
        "run": envelope.ticket.run,
        "address": envelope.address,
        "fence": notice.fence,
        "version": envelope.version,
        "status": decision.close.status,
        "reason": decision.close.reason,
        "result": _bytes(outcome.output),
        "error": None if outcome.fault is None else as_json(outcome.fault.to_tree()),
        "metadata": as_json(outcome.metadata) if outcome.metadata else None,
        "latency_s": outcome.latency_s,
        "cursor": move.cursor,
        "scope_status": move.status,
        "merges": int(move.merges),
        "output": _bytes(move.output),
        "context": _bytes(move.context),
        **_bind_next(envelope.ticket.run, decision.next),
        **_bind_end(decision.end),
        **bind_events((*outcome.events, *decision.events)),
        **bind_usage(outcome.usage),
    }


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
        "event_data": [as_json(event.data) for event in events],
        "event_at": [event.at for event in events],
    }


def as_json(tree: Any) -> str:
    """JSON text that jsonb takes: no NUL, no lone surrogate, whatever is in it (M-428)."""
    return orjson.dumps(safe_serialize(tree)).decode()


def as_text(text: str) -> str:
    """Text that a text column takes, whatever is in it (M-428)."""
    return str(safe_serialize(text))


def envelope_of(row: Mapping[str, Any]) -> Envelope:
    """Rebuild an envelope from a row of `due.sql` or `envelopes.sql`."""
    ticket = Ticket(
        run=row["run"],
        reference=row["reference"],
        fingerprint=row["fingerprint"],
        queue=row["run_queue"],
        priority=row["priority"],
        deadline=row["deadline"],
        trace_parent=row["trace_parent"],
        tenant=row["tenant"],
    )
    return Envelope(
        ticket=ticket,
        address=row["address"],
        step=row["step"],
        number=row["number"],
        version=row["version"],
        input=Packed.from_bytes(row["input"]),
        context=None if row["context"] is None else Packed.from_bytes(row["context"]),
        guidance=row["guidance"],
        queue=row["queue"],
        kind=row["kind"],
    )


def _bytes(packed: Packed | None) -> bytes | None:
    return None if packed is None else bytes(packed)


def _bind_next(run: str, following: NextAttempt | None) -> dict[str, Any]:
    names = (
        "next_key",
        "next_address",
        "next_step",
        "next_number",
        "next_kind",
        "next_queue",
        "next_after_s",
        "next_guidance",
    )
    if following is None:
        return dict.fromkeys(names)
    key = str(AttemptKey(run, following.address, following.step, following.number))
    guidance = None if following.guidance is None else as_text(following.guidance)
    values = (
        key,
        following.address,
        following.step,
        following.number,
        following.kind,
        following.queue,
        following.delay_s or GRACE_S,
        guidance,
    )
    return dict(zip(names, values, strict=True))


def _bind_end(end: End | None) -> dict[str, Any]:
    if end is None:
        return {"run_status": None, "run_reason": None, "run_error": None, "run_output": None}
    return {
        "run_status": end.status,
        "run_reason": end.reason,
        "run_error": None if end.fault is None else as_json(end.fault.to_tree()),
        "run_output": _bytes(end.output),
    }
