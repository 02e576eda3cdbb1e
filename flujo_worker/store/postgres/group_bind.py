"""Select the requests that can be claimed or merged in a group; bind their statements, and read the answers. Pure.

Under limits a group also reserves with its claims, and settles with its merges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_worker.ports import Claim, Committed
from flujo_worker.store.postgres import entities
from flujo_worker.store.postgres.bind import (
    bind_corrections,
    bind_decision,
    bind_next,
    bind_spends,
    columns,
    events_of,
    placed,
)
from flujo_worker.store.postgres.budgets import bind_holding, bind_opening, bind_reservations, read_refusals
from flujo_worker.store.shared_rules import SUSPECT_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import Decision
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
LIMITED_CLAIMS: Final = ("open_budgets", "claim", "hold_budgets", "reserve")
_LOOKS: Final = ("aborted_among", "closed_among")
MERGES: Final = ("conclude_many", "conclude", "record_corrections", *_LOOKS)
LIMITED_MERGES: Final = ("conclude_many", "record_corrections", "hold_budgets", "settle", "reserve", *_LOOKS)
"""The statements of each kind of group."""
_REFUSED: Final = (
    "of scope limit_usd limit_tokens settled_usd settled_tokens reserved_usd reserved_tokens overrun_usd overrun_tokens"
)


def call_claims(requests: Sequence[ClaimRequest]) -> list[Call]:
    """Return the statements that claim a group and reserve for it. Budgets are opened first, while the group holds no other locks."""
    to_reserve, claims = [each.to_reserve for each in requests], bind_claims(requests)
    budgets = {each.scope: each for some in reversed(to_reserve) for each in reversed(some)}
    if not budgets:
        return [("claim", claims)]
    return [
        ("open_budgets", bind_opening(list(budgets.values()))),
        ("claim", claims),
        ("hold_budgets", bind_holding(claims["key"], budgets)),
        ("reserve", bind_reservations(claims["key"], to_reserve)),
    ]


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
    """Return the claims, in the order of the requests, each with the reason if it got no reservation."""
    claimed, refused = (answers[0], ()) if len(answers) == 1 else (answers[1], answers[-1])
    faults = read_refusals(_named(refused), [each.to_reserve for each in requests])
    found = {key: (int(fence or 0), aborted == b"t", claim_id) for key, fence, claim_id, aborted in claimed}
    claims: list[Claim | None] = []
    for number, each in enumerate(requests, 1):
        fence, aborted, claim_id = found.get(each.key.encode(), (None, False, None))
        over = faults.get(number)
        made = Claim(fence, aborted=aborted, over=over, claim_id=_text(claim_id))
        claims.append(None if fence is None else made)
    return claims


def is_groupable(decision: Decision) -> bool:
    """Return whether a decision may be merged in a group: it moves its own scope alone, and touches and depends on no other branch."""
    end = decision.branch_end
    spreads = len(decision.moves) > 1 or decision.opens or decision.child_run or decision.fan_out or decision.lane_left
    aborts = decision.close.status == "cancelled" or (end is not None and end.aborts)
    return not (spreads or decision.answers or aborts or decision.awaits_event)


def is_mergeable_alone(decision: Decision) -> bool:
    """Return whether one statement merges a decision that goes in no group."""
    return not (decision.notice.envelope.ticket.limits is not None or decision.lane_left or decision.awaits_event)


def size(decision: Decision) -> int:
    """Return the bytes of the values that a merge writes."""
    move = decision.move
    values = (decision.notice.outcome.output, decision.failed_input, move.output, move.context, move.patch)
    return sum(len(each.stored) for each in values if each is not None)


def call_merges(decisions: Sequence[Decision]) -> list[Call]:
    """Return the statements that merge a group, or one decision that fits no group. Under limits it also settles, and reserves for what is claimed ahead.

    `settle.sql` records the spend then, because it must know whether it is the first. Budgets are not opened: where one is missing, the group
    undoes itself.
    """
    outcomes, corrections = [each.notice.outcome for each in decisions], call_corrections(decisions)
    if not is_groupable(decisions[0]):
        return [("conclude", bind_decision(decisions[0])), *corrections]
    merges, spends = bind_merges(decisions), bind_spends([each.usage for each in outcomes])
    if decisions[0].notice.envelope.ticket.limits is None:
        return [("conclude_many", merges | spends), *corrections]
    ended = [each.notice.envelope.ticket.run for each in decisions if each.end is not None]
    ahead = _reserved_ahead(decisions)
    scopes = {each.scope for some in ahead for each in some}
    return [
        ("conclude_many", merges | placed("spend", entities.NEW_SPEND, [])),
        *corrections,
        ("hold_budgets", bind_holding(merges["close_key"], scopes, ended)),
        ("settle", merges | spends | {"releases": [each.kind != "lost" for each in outcomes], "is_alone": False}),
        *([("reserve", bind_reservations(merges["ahead"], ahead))] if scopes else []),
    ]


class Look(NamedTuple):
    """Finds the fan-outs to join after a group has closed branches: those for which the statement returns a row.

    `is_around`: it looks at all fan-outs around a closed branch, not only at the branch's own.
    """

    statement: str
    is_around: bool

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
        """Add to the answers whether to signal the joins of closed branches; one decision signals each join."""
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
        if (end := decision.branch_end) is None:
            return []
        envelope = decision.notice.envelope
        return [(envelope.ticket.run, each) for each in (envelope.lanes if self.is_around else (end.fan_out,))]


ABORTED: Final = Look("aborted_among", is_around=True)
"""Where chords count: whether a fan-out around a closed branch is aborted, so that its chord will not signal (ADR 15)."""
CLOSED: Final = Look("closed_among", is_around=False)
"""Where none counts: whether the fan-out of a closed branch has no open one (ADR 9)."""


def call_corrections(decisions: Sequence[Decision]) -> list[Call]:
    """Return the statement that stores the corrections of a group; none if nothing was repaired."""
    notices = [each.notice for each in decisions]
    repairs = any(each.outcome.corrections for each in notices)
    return [("record_corrections", bind_corrections(notices))] if repairs else []


def bind_merges(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the parameters of `conclude_many.sql` except the spends."""
    lanes = [
        (number, each.notice.envelope.ticket.run, end.fan_out)
        for number, each in enumerate(decisions, 1)
        if (end := each.branch_end) is not None and end.takes
    ]
    return {
        "place": list(range(1, len(decisions) + 1)),
        **columns("close", entities.ENDED_ATTEMPT, decisions),
        **columns("move", entities.SCOPE_UPDATE, [each.move for each in decisions]),
        **bind_next(decisions),
        **placed("begun", entities.NEW_CHECKPOINT, [each.begun for each in decisions]),
        **placed("stored", entities.STORED_VALUE, [each.stored for each in decisions]),
        **placed("event", entities.NEW_EVENT, [events_of(each) for each in decisions]),
        **placed("run", entities.ENDED_RUN, [[] if each.end is None else [each.end] for each in decisions]),
        "ahead": [_claimed_ahead(each) for each in decisions],
        "lane_of": [number for number, _, _ in lanes],
        "lane_run": [run for _, run, _ in lanes],
        "lane_fan_out": [fan_out for _, _, fan_out in lanes],
    }


def read_merges(decisions: Sequence[Decision], answers: Sequence[Sequence[Row]]) -> list[Committed | None]:
    """Return which decisions were merged, in their order, and why the attempts claimed ahead got no reservation."""
    if not is_groupable(decisions[0]):
        [(is_merged, taken, claim_id)] = answers[0]
        return [Committed("merged", _text(taken), claim_id=_text(claim_id)) if is_merged == b"t" else None]
    ahead = _reserved_ahead(decisions)
    faults = read_refusals(_named(answers[-1]), ahead) if any(ahead) else {}
    merged = {int(place or 0): claim_id for place, claim_id in answers[0]}
    return [
        Committed("merged", claim_id=_text(merged[number]), over=faults.get(number)) if number in merged else None
        for number in range(1, len(decisions) + 1)
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _claimed_ahead(decision: Decision) -> str | None:
    run = decision.notice.envelope.ticket.run
    return next((each.key_in(run) for each in decision.next if each.claimed_by), None)


def _reserved_ahead(decisions: Sequence[Decision]) -> list[Sequence[Reservation]]:
    return [[one for following in each.next for one in following.to_reserve] for each in decisions]


def _named(refused: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `reserve.sql` under the names of their columns."""
    for row in refused:
        yield dict(zip(_REFUSED.split(), map(_text, row), strict=True))
