"""Budgets on Postgres: reservations with claims, settlements with merges, for one attempt or a group of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from flujo_client.contract.outcome import Fault, Usage
from flujo_client.serial import storable_text, stored_safely
from flujo_worker.domain.budget import NOTHING, Amount, Budget, Reservation, breach, refusal
from flujo_worker.ports import ClaimId
from flujo_worker.store.postgres.bind import bind_spends, placed
from flujo_worker.store.postgres.entities import ASKED, shown
from flujo_worker.store.postgres.statements import Connection, execute


def bind_opening(to_reserve: Sequence[Reservation]) -> dict[str, Any]:
    """Return the parameters of `open_budgets.sql`."""
    return {
        "scopes": [each.scope for each in to_reserve],
        "limits_usd": [None if each.limit_usd is None else str(each.limit_usd) for each in to_reserve],
        "limits_tokens": [each.limit_tokens for each in to_reserve],
    }


def bind_holding(keys: Sequence[str | None], scopes: Iterable[str] = (), ended: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parameters of `hold_budgets.sql`: attempts with reservations, budgets to reserve from, and runs that end."""
    return {"holders": list(keys), "scopes": sorted(scopes), "ended": list(ended)}


def bind_reservations(
    keys: Sequence[str | None], to_reserve: Sequence[Sequence[Reservation]], *, is_alone: bool = False
) -> dict[str, Any]:
    """Return the parameters of `reserve.sql`."""
    return {"key": keys, "is_alone": is_alone, **placed("ask", ASKED, to_reserve)}


def reserve(connection: Connection, key: str, to_reserve: Sequence[Reservation]) -> Fault | None:
    """Reserve for a claim in this transaction, or return why it is not granted; the budgets are open."""
    execute(connection, "hold_budgets", bind_holding([key], [each.scope for each in to_reserve]))
    refused = execute(connection, "reserve", bind_reservations([key], [to_reserve], is_alone=True))
    return read_refusals(refused, [to_reserve]).get(1)


def read_refusals(refused: Iterable[Mapping[str, Any]], asked: Sequence[Sequence[Reservation]]) -> dict[int, Fault]:
    """Return the faults of claims without a reservation, by the number of the claim."""
    faults: dict[int, Fault] = {}
    for row in refused:
        number, budget = int(row["of"]), budget_of(row)
        requested = {each.scope: each.requested for each in asked[number - 1]}
        faults.setdefault(number, refusal(budget, requested[budget.scope]))
    return faults


def budget_of(row: Mapping[str, Any]) -> Budget:
    """Read a row of `flujo_budgets`; numbers may come as text."""
    settled, reserved, overrun = (
        Amount(Decimal(row[f"{what}_usd"]), int(row[f"{what}_tokens"])) for what in ("settled", "reserved", "overrun")
    )
    limit_usd = None if row["limit_usd"] is None else Decimal(row["limit_usd"])
    limit_tokens = None if row["limit_tokens"] is None else int(row["limit_tokens"])
    return Budget(row["scope"], limit_usd, limit_tokens, settled, reserved, overrun)


def bind_settlement(claim: ClaimId, usage: Usage, *, releases: bool = True, ends: bool = False) -> dict[str, Any]:
    """Return the parameters of `settle.sql` for one outcome. A lost attempt may have spent, and retains its reservation: it releases none."""
    named = {"close_key": [claim.key], "close_fence": [claim.fence or 0], "close_claim_id": [claim.claim_id]}
    alone = {"place": [1], "releases": [releases], "run_of": [1] if ends else [], "is_alone": True}
    return {**named, **alone, **bind_spends([usage])}


def settle(
    connection: Connection, run: str, settlement: Mapping[str, Any], reserved: Sequence[Reservation] = ()
) -> Fault | None:
    """Book the spend of one attempt, with the parameters of `settle.sql`, and fail the root run of its tree if that passes a limit.

    `reserved`: reservations of the attempt that may be lost. Budgets are opened first, while this transaction holds no other locks.
    """
    [key], [fence] = settlement["close_key"], settlement["close_fence"]
    ended = [run] if settlement["run_of"] else []
    scopes = [each.scope for each in reserved]
    if reserved:
        execute(connection, "open_budgets", bind_opening(reserved))
    first = execute(connection, "hold_first_run", {"run": run}).fetchone()  # none without limits
    execute(connection, "hold_budgets", bind_holding([key], scopes, ended))
    if reserved:
        execute(connection, "restore_reservations", {"key": key, "scopes": scopes})
    rows = execute(connection, "settle", settlement).fetchall()
    return _break(connection, rows, first, key, fence, ended=run if ended else None)


def hold(
    connection: Connection, run: str, key: str, holds: Sequence[Reservation], *, spent: Amount = NOTHING, fence: int = 0
) -> Fault | None:
    """Set an attempt's reservations, all or none, and book its spend. Return the fault if a budget has too little left, or its tree of runs fails."""
    execute(connection, "open_budgets", bind_opening(holds))
    first = execute(connection, "hold_first_run", {"run": run}).fetchone() if spent != NOTHING else None
    execute(connection, "hold_budgets", bind_holding([key], [each.scope for each in holds]))
    parameters = {
        "key": key,
        "run": run,
        "scopes": [each.scope for each in holds],
        "usd": [str(each.requested.usd) for each in holds],
        "tokens": [each.requested.tokens for each in holds],
        "spent_usd": str(spent.usd),
        "spent_tokens": spent.tokens,
    }
    rows = execute(connection, "hold_requests", parameters).fetchall()
    requested = {each.scope: each.requested for each in holds}
    for row in rows:
        if row["is_refused"]:
            budget = budget_of(row)
            own = Amount(row["own_usd"], row["own_tokens"])
            return refusal(budget, requested[budget.scope] - own)
    return _break(connection, rows, first, key, fence)


def _break(
    connection: Connection,
    rows: Iterable[Mapping[str, Any]],
    first: Mapping[str, Any] | None,
    key: str,
    fence: int,
    *,
    ended: str | None = None,
) -> Fault | None:
    """Fail the first run of a tree if these changed budgets show that a limit was passed."""
    passed = breach((budget_of(row) for row in rows if row["is_breach"]), key)
    if passed is None or first is None:
        return None
    fault, violation = passed
    error, reason = stored_safely(fault.to_tree()), storable_text(fault.message)
    why = {"error": error, "reason": reason, "violation": shown(violation)}
    execute(connection, "break_run", {"root": first["id"], "ended": ended, "key": key, "fence": fence, **why})
    return fault
