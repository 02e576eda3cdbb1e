"""The outcomes of runs and the state of the machine in the report, and the thresholds at which they are reasons for attention.

Pure. Healthy systems have no reasons: each has a threshold that ordinary work does not reach.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flujo_client.config.models import Health
from flujo_client.health.facts import NAMED, WINDOW_H, Depths, EndCount, MachineFacts
from flujo_client.health.report import EndedRuns, Fact, Machine, Queue, Reason, RunOutcomes, Verdict

FEWEST_BEFORE: Final = 20
"""Of fewer runs that ended before the window, no rise is derived."""
LEAST_RISE: Final = 0.01
"""A share of failures below this is no rise, even if there were none before."""
_STATUSES: Final = ("succeeded", "failed", "expired", "cancelled")
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
    names = sorted(facts.queues.keys() | depths.messages.keys())
    return Machine(
        **facts.found,
        queues={name: Queue(waiting=facts.queues.get(name, 0), messages=depths.messages.get(name)) for name in names},
        broker_error=depths.error,
        live_workers=facts.live_workers,
        sweep_age_s=facts.sweep_age_s,
        sweep_lag_s=facts.sweep_lag_s,
        events_dropped=facts.events_dropped,
        refused_messages=depths.refused,
        refused_age_s=depths.refused_s,
    )


def judge(outcomes: RunOutcomes, machine: Machine, health: Health, hours: float | None) -> Verdict:
    """Return whether an operator should look, and the reasons; `hours` is the window."""
    reasons = (*_failures(outcomes, health), *_reasons(machine, health, hours or WINDOW_H))
    return Verdict(status="warn" if reasons else "ok", reasons=reasons)


def _reasons(machine: Machine, health: Health, hours: float) -> Iterator[Reason]:
    for code, message in _BAD.items():
        fact: Fact = getattr(machine, code)
        if fact.count:
            yield Reason(code=code, message=f"{fact.count} {message}", named=fact.named)
    yield from _waits(machine, health)
    for name, queue in machine.queues.items():
        if queue.messages is not None and queue.messages >= health.queue_depth:
            message = f"{queue.messages} messages are in the queue {name}"
            yield Reason(code="queue_depth", message=message, named=(name,))
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


def outcomes_of(ended: Sequence[EndCount], baseline_hours: float | None) -> RunOutcomes:
    """Sum up the outcomes of runs; `baseline_hours` is None if there is nothing to compare with."""
    in_window = [each for each in ended if each.part == "window"]
    by_pipeline = defaultdict[str, list["EndCount"]](list)
    for each in in_window:
        by_pipeline[each.pipeline].append(each)
    pipelines = {name: _outcomes(counts) for name, counts in by_pipeline.items()}
    worst_first = sorted(pipelines.items(), key=lambda item: (-item[1].unsuccessful, item[0]))
    before = None if baseline_hours is None else _outcomes(each for each in ended if each.part == "baseline")
    window, pipelines = _outcomes(in_window), dict(worst_first)
    return RunOutcomes(window=window, baseline=before, baseline_hours=baseline_hours, pipelines=pipelines)


def _outcomes(ended: Iterable[EndCount]) -> EndedRuns:
    counts, retried = Counter[str](), 0
    for each in ended:
        counts[each.status] += each.runs - each.retried
        retried += each.retried
    total, unsuccessful = counts.total(), counts["failed"] + counts["expired"]
    rate, by_status = round(unsuccessful / total, 4) if total else None, {each: counts[each] for each in _STATUSES}
    return EndedRuns(ended=total, retried=retried, failure_rate=rate, **by_status)


def _failures(outcomes: RunOutcomes, health: Health) -> Iterator[Reason]:
    """Yield the reasons: the failure rate of all runs or of one pipeline is too high, or much higher than before."""
    window, before = outcomes.window, outcomes.baseline
    high = [name for name, each in outcomes.pipelines.items() if _is_high(each, health)]
    failing = [name for name, each in outcomes.pipelines.items() if each.unsuccessful]
    if high or _is_high(window, health):
        yield Reason(code="failure_rate", message=_message(window), named=_named(outcomes, high or failing))
    elif before is not None and _has_risen(window, before, health):
        message = f"{_message(window)}; before, {before.failure_rate or 0.0:.1%} did"
        yield Reason(code="failure_rise", message=message, named=_named(outcomes, failing))


def _is_high(each: EndedRuns, health: Health) -> bool:
    return each.unsuccessful >= health.failed_runs and (each.failure_rate or 0.0) >= health.failure_rate


def _has_risen(window: EndedRuns, before: EndedRuns, health: Health) -> bool:
    if window.unsuccessful < health.failed_runs or before.ended < FEWEST_BEFORE:
        return False
    return (window.failure_rate or 0.0) >= max((before.failure_rate or 0.0) * health.failure_rise, LEAST_RISE)


def _message(window: EndedRuns) -> str:
    return f"{window.unsuccessful:,} of {window.ended:,} runs that ended failed or expired ({window.failure_rate or 0.0:.1%})"


def _named(outcomes: RunOutcomes, names: Sequence[str]) -> tuple[str, ...]:
    of = outcomes.pipelines
    return tuple(f"{name}: {of[name].unsuccessful:,} of {of[name].ended:,}" for name in names[:NAMED])
