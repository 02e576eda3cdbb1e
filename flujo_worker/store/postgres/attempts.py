"""Claims, merges and deferrals of attempts on Postgres. It decides nothing.

A commit whose answer was lost finds its own work done (`verdict.sql`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from flujo_client.contract.outcome import Event, Fault, Usage
from flujo_client.serial import stored_safely
from flujo_worker import failpoints
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.values import Decision
from flujo_worker.errors import RowLocked, Unreadable
from flujo_worker.ports import Claim, ClaimId, Committed, PlanName, Refusal, Room, Verdict
from flujo_worker.store.postgres.bind import bind_corrections, bind_decision, bind_deferral, bind_lane_left
from flujo_worker.store.postgres.budgets import bind_opening, bind_settlement, reserve, settle
from flujo_worker.store.postgres.entities import shown
from flujo_worker.store.postgres.group_bind import ClaimRequest, bind_claims
from flujo_worker.store.postgres.pool import InPostgres, RetryingPool
from flujo_worker.store.postgres.scopes import ScopesInPostgres
from flujo_worker.store.postgres.statements import UNDONE, execute


class _Rest(NamedTuple):
    """Further parts of some merges: parameters of statements by their names, and of `settle.sql`."""

    also: Mapping[str, Mapping[str, Any]]
    settled: Mapping[str, Any] | None


class AttemptsInPostgres(InPostgres):
    """The port `AttemptStore`."""

    def __init__(self, pool: RetryingPool, scopes: ScopesInPostgres) -> None:
        super().__init__(pool)
        self._scopes = scopes

    def claim(  # noqa: PLR0913 - one for each condition of a claim
        self,
        key: str,
        worker: str,
        *,
        max_lost: int,
        may_judge: bool = True,
        fan_outs: Sequence[str] = (),
        to_reserve: Sequence[Reservation] = (),
        room: Room = "shared",
        plan: PlanName | None = None,
    ) -> Claim:
        request = ClaimRequest(key, worker, fan_outs, plan, to_reserve)
        parameters = bind_claims([request], max_lost=max_lost, may_judge=may_judge, room=room)
        try:
            return self._pool.with_retry(lambda connection: _claim(connection, request, parameters), waits=False)
        except RowLocked:
            return Claim(refusal="locked")
        except psycopg.DataError as error:
            raise Unreadable(f"attempt {key} cannot be claimed: {error}", cause=error) from error

    def locked_among(self, keys: Sequence[str]) -> set[str]:
        return {row["key"] for row in self._pool.rows("locked_among", {"keys": list(keys)})}

    def lock_holders(self) -> tuple[str, ...]:
        return self._pool.lock_holders()

    def locked_budgets(self, scopes: Collection[str]) -> set[str]:
        return {row["scope"] for row in self._pool.rows("locked_budgets", {"scopes": list(scopes)})}

    def commit(self, decision: Decision) -> Committed:
        parameters, notice, settled = bind_decision(decision), decision.notice, None
        if notice.envelope.ticket.limits is not None:
            releases, ends = notice.outcome.kind != "lost", decision.end is not None
            key, usage = notice.envelope.key, notice.outcome.usage
            settled = bind_settlement(key, notice.fence, notice.claim_id, usage, releases=releases, ends=ends)
            parameters["spends"] = False  # settle.sql records it, for it must know whether it was the first to
        rest = _Rest(_optional_statements(decision), settled)
        try:
            failpoints.hit("before_commit")
            row = self._pool.with_retry(lambda connection: _conclude(connection, parameters, rest), waits=False)
        except psycopg.Error as error:
            if error.sqlstate != UNDONE:
                raise
            row = None
        if row is None:
            return self._refused(decision)
        if row["merged"] is None:
            return Committed("unstored")
        return Committed("merged", row.get("taken"), row.get("breach"), row.get("claim_id"))

    def spend(self, run: str, claim: ClaimId, usage: Usage, reserved: Sequence[Reservation] = ()) -> None:
        if usage.is_nothing:
            return
        spent = bind_settlement(claim.key, claim.fence or 0, claim.claim_id, usage)

        def book(connection: psycopg.Connection[dict[str, Any]]) -> None:
            with connection.transaction():
                settle(connection, run, spent, reserved)

        self._pool.with_retry(book)

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        rows = self._pool.rows("spent_lately", {"reference": reference, "runs": runs})
        return [(row.pop("key"), Usage(**row)) for row in map(dict, rows)]

    def defer(
        self,
        key: str,
        fence: int,
        delay_s: float,
        event: Event | None = None,
        *,
        waits_for: str | None = None,
        claim_id: str | None = None,
    ) -> bool:
        return bool(self._pool.rows("defer", bind_deferral(key, fence, claim_id, delay_s, event, waits_for)))

    def return_starved(
        self, key: str, fence: int, delay_s: float, event: Event, *, most: int, claim_id: str | None = None
    ) -> bool:
        return bool(
            self._pool.rows("return_starved", {**bind_deferral(key, fence, claim_id, delay_s, event), "most": most})
        )

    def postpone(self, key: str, delay_s: float) -> None:
        self._pool.do("postpone", {"key": key, "delay_s": delay_s})

    def break_off(self, run: str, fault: Fault, event: Event | None = None, at: ClaimId | None = None) -> bool:
        key, fence, claim_id = at or (None, None, None)
        name, data = (event.name, shown(event.data)) if event else (None, None)
        claim = {"run": run, "key": key, "fence": fence, "claim_id": claim_id}
        parameters = {**claim, "error": stored_safely(fault.to_tree()), "name": name, "data": data}
        return bool(self._pool.rows("break_off", parameters))

    def _refused(self, decision: Decision) -> Committed:
        notice = decision.notice
        run, key = notice.envelope.ticket.run, notice.envelope.key
        self.spend(run, ClaimId(key, notice.fence, notice.claim_id), notice.outcome.usage, notice.reserved)
        rows = self._pool.rows("verdict", {"key": key})
        verdict = _read_verdict(rows[0] if rows else None, decision)
        if verdict != "repeated" or decision.branch_end is None:
            return Committed(verdict)
        return Committed(verdict, self._scopes.lane(run, decision.branch_end.address)[1])


def _optional_statements(decision: Decision) -> dict[str, dict[str, Any]]:
    """Return the optional statements of a merge, which few merges have."""
    statements = {}
    if decision.notice.outcome.corrections:
        statements["record_corrections"] = bind_corrections([decision.notice])
    if decision.lane_left is not None:
        statements["leave_lane"] = bind_lane_left(decision, decision.lane_left)
    return statements


def _conclude(
    connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any], rest: _Rest
) -> dict[str, Any] | None:
    """Merge. Further parts need a transaction around it: they are stored with the merge or not at all."""
    with connection.transaction() if rest.also or rest.settled else nullcontext():
        row = execute(connection, "conclude", parameters).fetchone()
        if row and row["merged"] is None:
            return row
        merged = row if row and row["merged"] else None
        for statement, given in rest.also.items() if merged else ():
            cursor = execute(connection, statement, given)
            found = cursor.fetchone() if cursor.description else None
            merged = {**(merged or {}), **(found or {})}
        if merged and rest.settled:
            merged["breach"] = settle(connection, parameters["run"], rest.settled)
    failpoints.hit("answer_lost")
    return merged


def _claim(
    connection: psycopg.Connection[dict[str, Any]], request: ClaimRequest, parameters: Mapping[str, Any]
) -> Claim:
    """Claim, and reserve all or nothing in the same transaction. If that is refused, the attempt is claimed anyway, so that it can be concluded."""
    with connection.transaction() if request.to_reserve else nullcontext():
        if request.to_reserve:
            execute(connection, "open_budgets", bind_opening(request.to_reserve))
        row = execute(connection, "claim", parameters).fetchone()
        if row is None:
            claim = _why_not(connection, request, parameters)
        else:
            claim = Claim(row["fence"], aborted=row["aborted"], claim_id=row["claim_id"])
        if claim.fence is None or not request.to_reserve:
            return claim
        return replace(claim, over=reserve(connection, request.key, request.to_reserve))


def _why_not(
    connection: psycopg.Connection[dict[str, Any]], request: ClaimRequest, parameters: Mapping[str, Any]
) -> Claim:
    """Return why an attempt was not claimed. If the answer to its claim was lost, return the fence: the caller runs no second copy and may continue."""
    reference, fingerprint = request.plan or (None, None)
    one = {"key": request.key, "worker": request.worker, "reference": reference, "fingerprint": fingerprint}
    row = execute(connection, "refusal", {**parameters, **one, "fan_outs": list(request.fan_outs)}).fetchone()
    if row is None:
        return Claim(refusal="unknown")
    refusal = _refusal(row, reference)
    if refusal == "busy" and (row["was"], row["holder"]) == ("running", request.worker):
        return Claim(row["fence"], refusal, row["aborted"], claim_id=row["claim_id"])
    return Claim(refusal=refusal, in_company=row["in_company"] if refusal == "suspect" else 0)


def _refusal(row: Mapping[str, Any], reference: str | None) -> Refusal:
    if row["goes_by"] is not None:
        return "moved" if row["goes_by"] == reference else "mismatched"
    if row["was"] not in ("ready", "queued", "running"):
        return "ended"
    if row["run_status"] == "parked":
        return "parked"
    if row["stopped"] or row["run_status"] not in ("queued", "running"):
        return "stopped"
    if not row["leased"]:
        return "unleased"
    return "suspect" if row["is_suspect"] else "busy"


def _read_verdict(row: Mapping[str, Any] | None, decision: Decision) -> Verdict:
    """Return why nothing was merged. The same end under the same claim is this same outcome: only its holder could close it so."""
    close, notice = decision.close, decision.notice
    if row is None:
        return "stale"
    is_own = row["fence"] == notice.fence and notice.claim_id in (None, row["claim_id"])
    if is_own and (row["status"], row["reason"]) == (close.status, close.reason):
        return "repeated"
    if row["cancelled"] or row["run_status"] in ("cancelled", "expired"):
        return "stopped"
    return "stale"
