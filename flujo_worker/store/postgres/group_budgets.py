"""Groups under limits: the statements that reserve with claims and settle with merges, with their parameters, and their answers. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.store.postgres.bind import bind_spends, placed
from flujo_worker.store.postgres.budgets import bind_holding, bind_opening, bind_reservations, read_refusals
from flujo_worker.store.postgres.entities import NEW_SPEND
from flujo_worker.store.postgres.group_bind import bind_claims, bind_merges, call_corrections, read_claims, read_merges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Claim, Committed
    from flujo_worker.store.postgres.group_bind import ClaimRequest
    from flujo_worker.store.postgres.loop_connection import Call, Row

LIMITED_CLAIMS: Final = ("open_budgets", "claim", "hold_budgets", "reserve")
LIMITED_MERGES: Final = (
    "conclude_many",
    "record_corrections",
    "hold_budgets",
    "settle",
    "reserve",
    "aborted_among",
    "closed_among",
)
"""The statements of each kind of group."""
_REFUSED: Final = (
    "of scope limit_usd limit_tokens settled_usd settled_tokens reserved_usd reserved_tokens overrun_usd overrun_tokens"
)


def call_limited_claims(requests: Sequence[ClaimRequest]) -> list[Call]:
    """Return the statements that claim a group and reserve for it. Budgets are opened first, while the group holds no other locks."""
    to_reserve = [each.to_reserve for each in requests]
    budgets = {each.scope: each for some in reversed(to_reserve) for each in reversed(some)}
    claims = bind_claims(requests)
    return [
        ("open_budgets", bind_opening(list(budgets.values()))),
        ("claim", claims),
        ("hold_budgets", bind_holding(claims["key"], budgets)),
        ("reserve", bind_reservations(claims["key"], to_reserve)),
    ]


def read_limited_claims(requests: Sequence[ClaimRequest], answers: Sequence[Sequence[Row]]) -> list[Claim | None]:
    """Return the claims that were made, in the order of the requests; those that were granted no reservation say why."""
    _, claimed, _, refused = answers
    faults = read_refusals(_named(refused), [each.to_reserve for each in requests])
    return [
        claim and replace(claim, over=faults.get(number))
        for number, claim in enumerate(read_claims(requests, [claimed]), 1)
    ]


def call_limited_merges(decisions: Sequence[Decision]) -> list[Call]:
    """Return the statements that merge a group, settle it, and reserve for what it claims ahead.

    `settle.sql` records the spend, because it must know whether it is the first. Budgets are not opened: where one is missing, the group
    undoes itself.
    """
    merges, outcomes = bind_merges(decisions), [each.notice.outcome for each in decisions]
    ended = [each.notice.envelope.ticket.run for each in decisions if each.end is not None]
    releases = {"releases": [each.kind != "lost" for each in outcomes], "is_alone": False}
    ahead = _claims_ahead(decisions)
    scopes = {each.scope for some in ahead for each in some}
    return [
        ("conclude_many", merges | placed("spend", NEW_SPEND, [])),
        *call_corrections(decisions),
        ("hold_budgets", bind_holding(merges["close_key"], scopes, ended)),
        ("settle", merges | bind_spends([each.usage for each in outcomes]) | releases),
        *([("reserve", bind_reservations(merges["ahead"], ahead))] if scopes else []),
    ]


def read_limited_merges(decisions: Sequence[Decision], answers: Sequence[Sequence[Row]]) -> list[Committed | None]:
    """Return which decisions were merged, in their order, and why what they claimed ahead was granted no reservation."""
    ahead = _claims_ahead(decisions)
    faults = read_refusals(_named(answers[-1]), ahead) if any(ahead) else {}
    return [
        committed and replace(committed, over=faults.get(number))
        for number, committed in enumerate(read_merges(decisions, answers), 1)
    ]


def _claims_ahead(decisions: Sequence[Decision]) -> list[Sequence[Reservation]]:
    return [[one for following in each.next for one in following.to_reserve] for each in decisions]


def _named(refused: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `reserve.sql` under the names of their columns."""
    for row in refused:
        yield dict(zip(_REFUSED.split(), (each and each.decode() for each in row), strict=True))
