"""What may be claimed or merged in a group, the parameters of `claim_many.sql` and `conclude_many.sql`, and their answers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_worker.ports import Claim, Committed
from flujo_worker.store.postgres.bind import columns, placed, told
from flujo_worker.store.postgres.entities import (
    EndedAttempt,
    EndedRun,
    NewAttempt,
    NewCheckpoint,
    NewEvent,
    NewSpend,
    ScopeUpdate,
)
from flujo_worker.store.postgres.make_entities import (
    checkpoint,
    ended_attempt,
    ended_run,
    event,
    new_attempt,
    scope_update,
    spend,
)
from flujo_worker.store.shared_rules import SUSPECT_AFTER, grace_s, published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import PlanName
    from flujo_worker.store.postgres.loop_connection import Row


class ClaimRequest(NamedTuple):
    """An attempt that a worker wants, with the fan-outs that it stands in."""

    key: str
    worker: str
    fan_outs: Sequence[str]
    plan: PlanName | None


def bind_claims(requests: Sequence[ClaimRequest]) -> dict[str, Any]:
    """Give the parameters of `claim_many.sql`."""
    return {
        "key": [each.key for each in requests],
        "worker": [each.worker for each in requests],
        "reference": [each.plan and each.plan.reference for each in requests],
        "fingerprint": [each.plan and each.plan.fingerprint for each in requests],
        "fan_out_of": [each.key for each in requests for _ in each.fan_outs],
        "fan_out_address": [fan_out for each in requests for fan_out in each.fan_outs],
        "suspect_after": SUSPECT_AFTER,
    }


def read_claims(requests: Sequence[ClaimRequest], rows: Sequence[Row]) -> list[Claim | None]:
    """Give the claims that were granted, in the order of the requests."""
    granted = {key: Claim(int(fence or 0), aborted=aborted == b"t") for key, fence, aborted in rows}
    return [granted.get(each.key.encode()) for each in requests]


def is_groupable(decision: Decision) -> bool:
    """Tell whether a decision may be merged in a group: it moves its own scope alone, and touches no budget and no other branch."""
    end, notice = decision.branch_end, decision.notice
    spreads = len(decision.moves) > 1 or decision.opens or decision.child_run or decision.fan_out or decision.lane_left
    writes_more = decision.answers or notice.outcome.corrections or notice.envelope.ticket.limits is not None
    return not (spreads or writes_more or (end is not None and end.aborts))


def size(decision: Decision) -> int:
    """Give the bytes of the values that a merge writes."""
    values = (decision.notice.outcome.output, decision.move.output, decision.move.context, decision.move.patch)
    return sum(len(each.stored) for each in values if each is not None)


def bind_merges(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Give the parameters of `conclude_many.sql`."""
    lanes = [
        (number, each.notice.envelope.ticket.run, end.fan_out)
        for number, each in enumerate(decisions, 1)
        if (end := each.branch_end) is not None and end.takes
    ]
    usages = [each.notice.outcome.usage for each in decisions]
    return {
        "place": list(range(1, len(decisions) + 1)),
        **columns("close", EndedAttempt, [ended_attempt(each) for each in decisions]),
        **columns("move", ScopeUpdate, [scope_update(each.move) for each in decisions]),
        **placed("next", NewAttempt, [_following(each) for each in decisions]),
        **placed("begun", NewCheckpoint, [[checkpoint(begun) for begun in each.begun] for each in decisions]),
        **placed("event", NewEvent, [[event(line) for line in told(each)] for each in decisions]),
        **placed("spend", NewSpend, [[] if usage.is_nothing else [spend(usage)] for usage in usages]),
        **placed("run", EndedRun, [[] if each.end is None else [ended_run(each.end)] for each in decisions]),
        "lane_of": [number for number, _, _ in lanes],
        "lane_run": [run for _, run, _ in lanes],
        "lane_fan_out": [fan_out for _, _, fan_out in lanes],
    }


def read_merges(decisions: Sequence[Decision], rows: Sequence[Row]) -> list[Committed | None]:
    """Tell which decisions were merged, in their order."""
    merged = {int(place or 0) for (place,) in rows}
    return [Committed("merged") if number in merged else None for number in range(1, len(decisions) + 1)]


def _following(decision: Decision) -> list[NewAttempt]:
    run, grace = decision.notice.envelope.ticket.run, grace_s(published(decision))
    return [new_attempt(run, each, grace) for each in decision.next]
