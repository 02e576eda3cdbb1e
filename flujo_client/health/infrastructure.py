"""The infrastructure in the report: facts, and reasons for attention.

Pure. Healthy infrastructure has no reasons: each has a threshold that ordinary work does not reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from flujo_client.health.facts import WINDOW_H, Depths, MachineFacts
from flujo_client.health.outcomes import failures
from flujo_client.health.report import Fact, Machine, Queue, Reason, RunOutcomes, Verdict

if TYPE_CHECKING:
    from flujo_client.config.models import Health

_BAD: Final = {
    "stuck_runs": "runs are stuck: no part of them can continue, and they wait for no answer",
    "parked_runs": "runs are parked: no worker has their code",
    "pinned_runs": "of them are pinned to code that no live worker is known to have: start one with `flujo worker --build NAME`, or move them with "
    "`flujo runs upgrade`",
    "orphans": "attempts are orphans: their worker is gone, and no sweep has recovered them",
    "dead_workers": "workers died: their lease ran out without an orderly stop",
    "open_breakers": "circuit breakers are not closed: calls of their models wait",
    "reservation_leaks": "reservations are held by attempts that have ended, or do not add up to their budget",
}


def machine_of(facts: MachineFacts, depths: Depths) -> Machine:
    """Combine the facts of Postgres and Redis."""
    found = {
        what: Fact(count=each.count, oldest_s=_rounded(each.oldest_s), named=each.named)
        for what, each in facts.found.items()
    }
    names = sorted(facts.queues.keys() | depths.messages.keys())
    return Machine(
        **found,
        queues={name: Queue(waiting=facts.queues.get(name, 0), messages=depths.messages.get(name)) for name in names},
        broker_error=depths.error,
        live_workers=facts.live_workers,
        sweep_age_s=_rounded(facts.sweep_age_s),
        sweep_lag_s=_rounded(facts.sweep_lag_s),
        events_dropped=facts.events_dropped,
        refused_messages=depths.refused,
        refused_age_s=_rounded(depths.refused_s),
    )


def judge(outcomes: RunOutcomes, machine: Machine, health: Health, hours: float | None) -> Verdict:
    """Return whether an operator should look, and at what; `hours` is the window."""
    reasons = (*failures(outcomes, health), *_reasons(machine, health, hours or WINDOW_H))
    return Verdict(status="warn" if reasons else "ok", reasons=reasons)


def _reasons(machine: Machine, health: Health, hours: float) -> Iterator[Reason]:
    for code, message in _BAD.items():
        fact: Fact = getattr(machine, code)
        if fact.count:
            yield Reason(code=code, message=f"{fact.count} {message}", named=fact.named)
    yield from _waits(machine, health)
    for name, queue in machine.queues.items():
        if queue.messages is not None and queue.messages >= health.queue_depth:
            yield Reason(
                code="queue_depth", message=f"{queue.messages} messages are in the queue {name}", named=(name,)
            )
    if machine.sweep_lag_s is not None and machine.sweep_lag_s >= health.sweep_lag_s:
        yield Reason(code="sweep_lag", message=f"no sweep for {machine.sweep_lag_s:g} s, although workers are alive")
    if machine.events_dropped:
        yield Reason(code="events_dropped", message=f"{machine.events_dropped} events were dropped")
    if machine.refused_age_s is not None and machine.refused_age_s <= hours * 3600:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in machine.refused_messages.items())
        count = sum(machine.refused_messages.values())
        message = f"{count:,} messages were refused, the last one {machine.refused_age_s:g} s ago: {reasons}"
        yield Reason(code="refused_messages", message=message)
    if machine.broker_error is not None:
        yield Reason(code="broker_unreachable", message=machine.broker_error)


def _waits(machine: Machine, health: Health) -> Iterator[Reason]:
    waiting = machine.waiting
    if waiting.oldest_s is not None and waiting.oldest_s >= health.queued_s:
        message = f"the oldest of {waiting.count} attempts that could begin has waited for {waiting.oldest_s:g} s"
        yield Reason(code="oldest_queued", message=message, named=waiting.named)
    if waiting.count and not machine.live_workers:
        yield Reason(code="no_worker", message=f"{waiting.count} attempts could begin, and no worker is alive")
    pending = machine.owed_hooks
    if pending.oldest_s is not None and pending.oldest_s >= health.queued_s:
        message = f"the oldest of {pending.count} pending hook calls has waited for {pending.oldest_s:g} s"
        yield Reason(code="owed_hooks", message=message, named=pending.named)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(seconds, 0.0), 1)
