"""Select the requests that can be claimed or merged in a group; bind their statements, and read the answers. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_worker.ports import Claim, Committed
from flujo_worker.store.postgres.bind import (
    bind_corrections,
    bind_decision,
    bind_next,
    bind_spends,
    columns,
    events_of,
    placed,
)
from flujo_worker.store.postgres.entities import (
    ENDED_ATTEMPT,
    ENDED_RUN,
    NEW_CHECKPOINT,
    NEW_EVENT,
    SCOPE_UPDATE,
    STORED_VALUE,
)
from flujo_worker.store.shared_rules import SUSPECT_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import BranchClosed, Decision
    from flujo_worker.ports import FanOutPlace, PlanName, Room
    from flujo_worker.store.postgres.loop_connection import Call, Row


class ClaimRequest(NamedTuple):
    """A request to claim an attempt: its key, the fan-outs around it and what it reserves from budgets."""

    key: str
    worker: str
    fan_outs: Sequence[str]
    plan: PlanName | None
    to_reserve: Sequence[Reservation] = ()


CLAIM_SETTINGS: Final = "claim_settings"
CLAIMS: Final = ("claim",)
MERGES: Final = ("conclude_many", "conclude", "record_corrections", "aborted_among", "closed_among")
"""The statements of each kind of group."""


def call_claims(requests: Sequence[ClaimRequest]) -> list[Call]:
    """Return what claims a group."""
    return [("claim", bind_claims(requests))]


def bind_claims(
    requests: Sequence[ClaimRequest], *, max_lost: int = 0, may_judge: bool = False, room: Room = "shared"
) -> dict[str, Any]:
    """Return the parameters of `claim.sql`. The defaults are those of a group, which takes only attempts that no worker has."""
    return {
        "key": [each.key for each in requests],
        "worker": [each.worker for each in requests],
        "reference": [each.plan and each.plan.reference for each in requests],
        "fingerprint": [each.plan and each.plan.fingerprint for each in requests],
        "fan_out_of": [each.key for each in requests for _ in each.fan_outs],
        "fan_out_address": [fan_out for each in requests for fan_out in each.fan_outs],
        "suspect_after": SUSPECT_AFTER,
        "max_lost": max_lost,
        "may_judge": may_judge,
        "room": room,
    }


def read_claims(requests: Sequence[ClaimRequest], answers: Sequence[Sequence[Row]]) -> list[Claim | None]:
    """Return the claims that were granted, in the order of the requests."""
    granted = {
        key: Claim(int(fence or 0), aborted=aborted == b"t", claim_id=None if claim_id is None else claim_id.decode())
        for key, fence, claim_id, aborted in answers[0]
    }
    return [granted.get(each.key.encode()) for each in requests]


def is_groupable(decision: Decision) -> bool:
    """Return whether a decision may be merged in a group: it moves its own scope alone, and touches and depends on no other branch."""
    end = decision.branch_end
    spreads = len(decision.moves) > 1 or decision.opens or decision.child_run or decision.fan_out or decision.lane_left
    aborts = decision.close.status == "cancelled" or (end is not None and end.aborts)
    return not (spreads or decision.answers or aborts)


def is_mergeable_alone(decision: Decision) -> bool:
    """Return whether one statement merges a decision that goes in no group."""
    return decision.notice.envelope.ticket.limits is None and decision.lane_left is None


def size(decision: Decision) -> int:
    """Return the bytes of the values that a merge writes."""
    move = decision.move
    values = (decision.notice.outcome.output, decision.failed_input, move.output, move.context, move.patch)
    return sum(len(each.stored) for each in values if each is not None)


def call_merges(decisions: Sequence[Decision]) -> list[Call]:
    """Return what merges a group, or one decision that goes in none."""
    first = decisions[0]
    if is_groupable(first):
        call: Call = (
            "conclude_many",
            bind_merges(decisions) | bind_spends([each.notice.outcome.usage for each in decisions]),
        )
    else:
        call = ("conclude", bind_decision(first))
    return [call, *call_corrections(decisions)]


class Look(NamedTuple):
    """What a group reads of fan-outs once its closed branches are committed: those for which the statement has a row are to be joined.

    Attributes:
        statement: its name.
        around: returns the fan-outs that it is about for a decision that closes a branch.
    """

    statement: str
    around: Callable[[Decision, BranchClosed], list[FanOutPlace]]

    def call(self, decisions: Sequence[Decision]) -> list[Call]:
        """Return the statement for all fan-outs of a group, if it closes a branch at all."""
        fan_outs = {place for each in decisions for place in self._places(each)}
        if not fan_outs:
            return []
        runs, addresses = zip(*fan_outs, strict=True)
        return [(self.statement, {"runs": list(runs), "addresses": list(addresses)})]

    def read(
        self, decisions: Sequence[Decision], merged: Sequence[Committed | None], rows: Sequence[Row]
    ) -> list[Committed | None]:
        """Return what was merged, with whether the joins of closed branches must be signalled: each by one of those that closed a branch."""
        found = {(run.decode(), address.decode()) for run, address in rows if run is not None and address is not None}
        signalled: set[FanOutPlace] = set()
        answers = list(merged)
        for number, (committed, decision) in enumerate(zip(merged, decisions, strict=True)):
            if committed is not None and (end := decision.branch_end) is not None:
                join = decision.notice.envelope.ticket.run, end.fan_out
                is_due = join not in signalled and not found.isdisjoint(self._places(decision))
                answers[number] = replace(committed, must_signal=is_due)
                signalled |= {join} if is_due else set()
        return answers

    def _places(self, decision: Decision) -> list[FanOutPlace]:
        return [] if decision.branch_end is None else self.around(decision, decision.branch_end)


def _fan_outs_around(decision: Decision, _: BranchClosed) -> list[FanOutPlace]:
    envelope = decision.notice.envelope
    return [(envelope.ticket.run, each) for each in envelope.lanes]


def _fan_out_of(decision: Decision, ended: BranchClosed) -> list[FanOutPlace]:
    return [(decision.notice.envelope.ticket.run, ended.fan_out)]


ABORTED: Final = Look("aborted_among", _fan_outs_around)
"""Where chords count: whether a fan-out around a closed branch is aborted, so that its chord will not signal (ADR 15)."""
CLOSED: Final = Look("closed_among", _fan_out_of)
"""Where none counts: whether the fan-out of a closed branch has no open one (ADR 9)."""


def call_corrections(decisions: Sequence[Decision]) -> list[Call]:
    """Return what stores the corrections of a group. Without repairs the ledger is never touched."""
    notices = [each.notice for each in decisions]
    repairs = any(each.outcome.corrections for each in notices)
    return [("record_corrections", bind_corrections(notices))] if repairs else []


def bind_merges(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the parameters of `conclude_many.sql`, but for what was spent."""
    lanes = [
        (number, each.notice.envelope.ticket.run, end.fan_out)
        for number, each in enumerate(decisions, 1)
        if (end := each.branch_end) is not None and end.takes
    ]
    return {
        "place": list(range(1, len(decisions) + 1)),
        **columns("close", ENDED_ATTEMPT, decisions),
        **columns("move", SCOPE_UPDATE, [each.move for each in decisions]),
        **bind_next(decisions),
        **placed("begun", NEW_CHECKPOINT, [each.begun for each in decisions]),
        **placed("stored", STORED_VALUE, [each.stored for each in decisions]),
        **placed("event", NEW_EVENT, [events_of(each) for each in decisions]),
        **placed("run", ENDED_RUN, [[] if each.end is None else [each.end] for each in decisions]),
        "ahead": [_claimed_ahead(each) for each in decisions],
        "lane_of": [number for number, _, _ in lanes],
        "lane_run": [run for _, run, _ in lanes],
        "lane_fan_out": [fan_out for _, _, fan_out in lanes],
    }


def read_merges(decisions: Sequence[Decision], answers: Sequence[Sequence[Row]]) -> list[Committed | None]:
    """Return which decisions were merged, in their order."""
    if not is_groupable(decisions[0]):
        [(is_merged, taken, claim_id)] = answers[0]
        return [_committed(claim_id, taken) if is_merged == b"t" else None]
    merged = {int(place or 0): _committed(claim_id) for place, claim_id in answers[0]}
    return [merged.get(number) for number in range(1, len(decisions) + 1)]


def _committed(claim_id: bytes | None, taken: bytes | None = None) -> Committed:
    return Committed(
        "merged", None if taken is None else taken.decode(), claim_id=None if claim_id is None else claim_id.decode()
    )


def _claimed_ahead(decision: Decision) -> str | None:
    return next(
        (str(each.key_in(decision.notice.envelope.ticket.run)) for each in decision.next if each.claimed_by), None
    )
