"""Claims, merges and deferrals of attempts on Postgres. It decides nothing.

A commit whose answer was lost finds its own work done (`verdict.sql`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import psycopg

from flujo_client.contract.outcome import Event, Fault, Usage
from flujo_client.serial import stored_safely
from flujo_client.sizes import MAX_EVENTS
from flujo_worker import failpoints
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.values import AttemptReport, Decision
from flujo_worker.errors import RowLocked, Unreadable
from flujo_worker.ports import Claim, ClaimId, ClaimTerms, Committed, Refusal, Verdict
from flujo_worker.store.postgres.bind import bind_decision, bind_deferral, bind_lane_left, placed
from flujo_worker.store.postgres.budgets import bind_opening, bind_settlement, reserve, settle
from flujo_worker.store.postgres.entities import NEW_SPEND, shown
from flujo_worker.store.postgres.group_bind import ClaimRequest, bind_claims, call_corrections
from flujo_worker.store.postgres.pool import InPostgres, RetryingPool
from flujo_worker.store.postgres.scopes import ScopesInPostgres
from flujo_worker.store.postgres.statements import UNDONE, Connection, execute
from flujo_worker.store.shared_rules import grace_s

if TYPE_CHECKING:
    from flujo_worker.store.postgres.loop_connection import Call


class AttemptsInPostgres(InPostgres):
    def __init__(self, pool: RetryingPool, scopes: ScopesInPostgres) -> None:
        super().__init__(pool)
        self._scopes = scopes

    def claim(self, key: str, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        fan_outs, to_reserve = terms.get("fan_outs", ()), terms.get("to_reserve", ())
        request = ClaimRequest(key, worker, fan_outs, terms.get("plan"), to_reserve)
        may_judge, room = terms.get("may_judge", True), terms.get("room", "shared")
        parameters = bind_claims([request], max_lost=terms["max_lost"], may_judge=may_judge, room=room)
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
            claim, outcome, ends = _claim_of(notice), notice.outcome, decision.end is not None
            settled = bind_settlement(claim, outcome.usage, releases=outcome.kind != "lost", ends=ends)
            # settle.sql records it, because it must know whether it is the first to do so
            parameters |= placed("spend", NEW_SPEND, [])
        calls: list[Call] = [("conclude", parameters), *call_corrections([decision])]
        if decision.lane_left is not None:
            calls.append(("leave_lane", bind_lane_left(decision, decision.lane_left)))
        if decision.awaits_event:
            given = {"limit": MAX_EVENTS, "grace_s": grace_s(len(decision.next))}
            calls.append(("give_events", {"run": notice.envelope.ticket.run, **given}))
        try:
            failpoints.hit("before_commit")
            row = self._pool.with_retry(lambda connection: _conclude(connection, calls, settled), waits=False)
        except psycopg.Error as error:
            if error.sqlstate != UNDONE:
                raise
            row = {"merged": False}
        if row["merged"] is None:
            return Committed("unstored")
        if not row["merged"]:
            return self._refused(decision)
        return Committed("merged", row["taken"], row.get("breach"), row["claim_id"], given=row.get("given", ()))

    def spend(self, run: str, claim: ClaimId, usage: Usage, reserved: Sequence[Reservation] = ()) -> None:
        if usage.is_nothing:
            return
        spent = bind_settlement(claim, usage)

        def book(connection: Connection) -> None:
            with connection.transaction():
                settle(connection, run, spent, reserved)

        self._pool.with_retry(book)

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        rows = self._pool.rows("spent_lately", {"reference": reference, "runs": runs})
        return [(row.pop("key"), Usage(**row)) for row in map(dict, rows)]

    def defer(
        self, claim: ClaimId, delay_s: float, event: Event | None = None, *, waits_for: str | None = None
    ) -> bool:
        return bool(self._pool.rows("defer", bind_deferral(claim, delay_s, event, waits_for)))

    def return_starved(self, claim: ClaimId, delay_s: float, event: Event, *, most: int) -> bool:
        return bool(self._pool.rows("return_starved", bind_deferral(claim, delay_s, event) | {"most": most}))

    def postpone(self, key: str, delay_s: float) -> None:
        self._pool.do("postpone", {"key": key, "delay_s": delay_s})

    def break_off(self, run: str, fault: Fault, event: Event | None = None, at: ClaimId | None = None) -> bool:
        claim = at._asdict() if at else dict.fromkeys(ClaimId._fields)
        name, data = (event.name, shown(event.data)) if event else (None, None)
        parameters = {"run": run, "error": stored_safely(fault.to_tree()), "name": name, "data": data}
        return bool(self._pool.rows("break_off", claim | parameters))

    def _refused(self, decision: Decision) -> Committed:
        notice = decision.notice
        run = notice.envelope.ticket.run
        self.spend(run, _claim_of(notice), notice.outcome.usage, notice.reserved)
        rows = self._pool.rows("verdict", {"key": notice.envelope.key})
        verdict = _read_verdict(rows[0], decision) if rows else "stale"
        if verdict != "repeated" or decision.branch_end is None:
            return Committed(verdict)
        return Committed(verdict, self._scopes.lane(run, decision.branch_end.address)[1])


def _claim_of(notice: AttemptReport) -> ClaimId:
    return ClaimId(notice.envelope.key, notice.fence, notice.claim_id)


def _conclude(connection: Connection, calls: Sequence[Call], settled: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge. Further parts need a transaction around it: they are stored with the merge or not at all."""
    (conclude, parameters), *rest = calls
    with connection.transaction() if rest or settled else nullcontext():
        [row] = execute(connection, conclude, parameters).fetchall()
        if row["merged"]:
            for name, given in rest:
                cursor = execute(connection, name, given)
                row |= (cursor.fetchone() if cursor.description else None) or {}
        if row["merged"] and settled:
            row["breach"] = settle(connection, parameters["run"], settled)
    failpoints.hit("answer_lost")
    return row


def _claim(connection: Connection, request: ClaimRequest, parameters: Mapping[str, Any]) -> Claim:
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


def _why_not(connection: Connection, request: ClaimRequest, parameters: Mapping[str, Any]) -> Claim:
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


def _read_verdict(row: Mapping[str, Any], decision: Decision) -> Verdict:
    claim, end = (row["fence"], row["claim_id"]), (row["status"], row["reason"])
    is_stopped = row["cancelled"] or row["run_status"] in ("cancelled", "expired")
    return decision.why_not_merged(claim, end, is_stopped=is_stopped)
