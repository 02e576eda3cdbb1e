"""Groups under limits: the statements that reserve with claims and settle with merges, with their parameters, and their answers. Pure."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.domain.budget import Amount, Budget, refusal
from flujo_worker.store.postgres.bind import placed
from flujo_worker.store.postgres.budgets import bind_opening
from flujo_worker.store.postgres.entities import NewSpend
from flujo_worker.store.postgres.group_bind import (
    bind_claims,
    bind_merges,
    bind_spends,
    call_corrections,
    read_claims,
    read_merges,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.outcome import Fault
    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Claim, Committed
    from flujo_worker.store.postgres.group_bind import ClaimRequest
    from flujo_worker.store.postgres.loop_connection import Call, Row

LIMITED_CLAIMS: Final = ("open_budgets", "claim_many", "hold_budgets", "reserve_many")
LIMITED_MERGES: Final = ("conclude_many", "record_corrections", "hold_budgets", "settle_many", "reserve_many")
"""The statements of each kind of group."""


def call_limited_claims(requests: Sequence[ClaimRequest]) -> list[Call]:
    """Return the statements that claim a group and reserve for it. Budgets are opened first, while the group holds no other locks."""
    to_reserve = [each.to_reserve for each in requests]
    budgets = {each.scope: each for some in reversed(to_reserve) for each in reversed(some)}
    claims = bind_claims(requests)
    return [
        ("open_budgets", bind_opening(list(budgets.values()))),
        ("claim_many", claims),
        ("hold_budgets", {"holders": claims["key"], "ended": [], "scopes": sorted(budgets)}),
        ("reserve_many", _bind_asks(claims["key"], to_reserve)),
    ]


def _bind_asks(keys: Sequence[str | None], to_reserve: Sequence[Sequence[Reservation]]) -> dict[str, Any]:
    asked = [(number, each) for number, some in enumerate(to_reserve, 1) for each in some]
    return {
        "key": keys,
        "ask_of": [number for number, _ in asked],
        "ask_scope": [each.scope for _, each in asked],
        "ask_usd": [str(each.requested.usd) for _, each in asked],
        "ask_tokens": [each.requested.tokens for _, each in asked],
    }


def read_limited_claims(requests: Sequence[ClaimRequest], answers: Sequence[Sequence[Row]]) -> list[Claim | None]:
    """Return the claims that were made, in the order of the requests; those that were granted no reservation say why."""
    _, claimed, _, refused = answers
    faults = _refusals(refused, [each.to_reserve for each in requests])
    return [
        claim and replace(claim, over=faults.get(number))
        for number, claim in enumerate(read_claims(requests, [claimed]), 1)
    ]


def _refusals(refused: Sequence[Row], to_reserve: Sequence[Sequence[Reservation]]) -> dict[int, Fault]:
    """Return why there is no reservation, by the number of the claim."""
    faults: dict[int, Fault] = {}
    for row in refused:
        number, budget = int(row[0] or 0), _budget(row)
        requested = {each.scope: each.requested for each in to_reserve[number - 1]}
        faults.setdefault(number, refusal(budget, requested[budget.scope]))
    return faults


def call_limited_merges(decisions: Sequence[Decision]) -> list[Call]:
    """Return the statements that merge a group, settle it, and reserve for what it claims ahead.

    `settle_many.sql` records the spend, because it must know whether it is the first. Budgets are not opened: where one is missing, the group
    undoes itself.
    """
    merges, spends = bind_merges(decisions), bind_spends(decisions)
    nothing = placed("spend", NewSpend, [])
    ended = [each.notice.envelope.ticket.run for each in decisions if each.end is not None]
    settlements = {
        "releases": [each.notice.outcome.kind != "lost" for each in decisions],
        "spent_usd": [
            str(Amount.of(usage).usd) for each in decisions if not (usage := each.notice.outcome.usage).is_nothing
        ],
    }
    ahead = _claims_ahead(decisions)
    scopes = sorted({each.scope for some in ahead for each in some})
    return [
        ("conclude_many", merges | nothing),
        *call_corrections(decisions),
        ("hold_budgets", {"holders": merges["close_key"], "ended": ended, "scopes": scopes}),
        ("settle_many", merges | spends | settlements),
        *([("reserve_many", _bind_asks(merges["ahead"], ahead))] if scopes else []),
    ]


def read_limited_merges(decisions: Sequence[Decision], answers: Sequence[Sequence[Row]]) -> list[Committed | None]:
    """Return which decisions were merged, in their order, and why what they claimed ahead was granted no reservation."""
    ahead = _claims_ahead(decisions)
    faults = _refusals(answers[-1], ahead) if any(ahead) else {}
    return [
        committed and replace(committed, over=faults.get(number))
        for number, committed in enumerate(read_merges(decisions, answers), 1)
    ]


def _claims_ahead(decisions: Sequence[Decision]) -> list[Sequence[Reservation]]:
    return [[one for following in each.next for one in following.to_reserve] for each in decisions]


def _budget(row: Row) -> Budget:
    """Read a budget that refused a claim, as that claim found it."""
    _, scope, limit_usd, limit_tokens, *amounts = (None if each is None else each.decode() for each in row)
    settled, reserved, overrun = (
        Amount(Decimal(usd or 0), int(tokens or 0)) for usd, tokens in zip(amounts[::2], amounts[1::2], strict=True)
    )
    most_usd = None if limit_usd is None else Decimal(limit_usd)
    most_tokens = None if limit_tokens is None else int(limit_tokens)
    return Budget(scope or "", most_usd, most_tokens, settled, reserved, overrun)
