"""Budgets on Postgres: the parameters of a claim, the answers of a settlement, and the settlement in the transactions of `postgres.py`."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from flujo_client.serial import stored_safely
from flujo_worker.domain.budget import Amount, Budget, breach, refusal
from flujo_worker.store.postgres.make_entities import as_text, shown
from flujo_worker.store.postgres.statements import execute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from flujo_client.contract.outcome import Fault
    from flujo_worker.domain.budget import Reservation


class BudgetNotOpened(Exception):
    """A requested budget has no row yet."""


def bind_opening(to_reserve: Sequence[Reservation]) -> dict[str, Any]:
    """Return the parameters of `open_budgets.sql`."""
    return {
        "scopes": [each.scope for each in to_reserve],
        "limits_usd": [None if each.limit_usd is None else str(each.limit_usd) for each in to_reserve],
        "limits_tokens": [each.limit_tokens for each in to_reserve],
    }


def bind_reservations(to_reserve: Sequence[Reservation]) -> dict[str, Any]:
    """Return the parameters by which `claim_limited.sql` reserves."""
    return {
        "scopes": [each.scope for each in to_reserve],
        "usd": [each.requested.usd for each in to_reserve],
        "tokens": [each.requested.tokens for each in to_reserve],
    }


def claim_limited(
    connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Claim and reserve, in a separate transaction: first all locks, then the decision under them.

    Raises:
        BudgetNotOpened: a budget has no row that could be locked.
    """
    with connection.transaction():
        if execute(connection, "hold_claim", parameters).rowcount < len(parameters["scopes"]):
            raise BudgetNotOpened
        return execute(connection, "claim_limited", parameters).fetchone()


def over(row: Mapping[str, Any], to_reserve: Sequence[Reservation]) -> Fault | None:
    """Return why a claim was not granted what it asked for, from a row of `claim_limited.sql`."""
    if row["is_granted"]:
        return None
    requested = {each.scope: each.requested for each in to_reserve}
    for refused in row["refused"] or ():
        return refusal(budget_of(refused), requested[refused["scope"]])
    first = to_reserve[0]  # the answer that named the budget was lost
    return refusal(Budget(first.scope, first.limit_usd, first.limit_tokens), first.requested)


def budget_of(row: Mapping[str, Any]) -> Budget:
    """Read a row of `flujo_budgets`; dollars may come as text."""
    settled, reserved, overrun = (
        Amount(Decimal(row[f"{what}_usd"]), row[f"{what}_tokens"]) for what in ("settled", "reserved", "overrun")
    )
    limit = None if row["limit_usd"] is None else Decimal(row["limit_usd"])
    return Budget(row["scope"], limit, row["limit_tokens"], settled, reserved, overrun)


def settle(
    connection: psycopg.Connection[dict[str, Any]], settlement: Mapping[str, Any], *, ends: bool = False
) -> Fault | None:
    """Book the spend of an attempt, and fail the root run of its tree if that passes a limit.

    Args:
        connection: in a transaction.
        settlement: the parameters of `settle.sql`.
        ends: whether the merge has ended the attempt's run.
    """
    run = settlement["run"]
    first = execute(connection, "hold_first_run", {"run": run}).fetchone()  # none without limits
    held = {"holders": [settlement["key"]], "ended": [run] if ends else [], "scopes": []}
    execute(connection, "hold_budgets", held)
    rows = execute(connection, "settle", settlement).fetchall()
    if ends:
        execute(connection, "release", {"run": run})
    passed = breach(budget_of(row) for row in rows if row["is_breach"])
    if passed is None or first is None:
        return None
    fault, violation = passed
    parameters = {
        "root": first["id"],
        "ended": run if ends else None,
        "key": settlement["key"],
        "fence": settlement["fence"],
        "error": stored_safely(fault.to_tree()),
        "reason": as_text(fault.message),
        "violation": shown(violation),
    }
    execute(connection, "break_run", parameters)
    return fault
