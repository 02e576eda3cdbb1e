"""The store on Postgres: binds statements and maps rows, and decides nothing.

Every operation is one statement and one transaction, except winding down, and merges of outcomes with repairs. A commit
whose answer was lost finds its own work done (`verdict.sql`).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson
import psycopg

from flujo_client.contract.code import AwaitedCode, CodeVersion
from flujo_client.contract.outcome import Usage
from flujo_client.serial import stored_safely
from flujo_worker import failpoints
from flujo_worker.errors import RowLocked, Unreadable
from flujo_worker.ports import (
    BrokerSnapshot,
    Claim,
    Committed,
    Damaged,
    Due,
    Member,
    PlanName,
    Publish,
    Refusal,
    Renewal,
    Reply,
    Room,
    Verdict,
    ignore,
    publish_nothing,
)
from flujo_worker.store.migrate import migrations
from flujo_worker.store.postgres.admission import AdmissionInPostgres
from flujo_worker.store.postgres.bind import (
    bind_corrections,
    bind_decision,
    bind_deferral,
    bind_lane_left,
    bind_settlement,
    bind_spend,
)
from flujo_worker.store.postgres.blobs import Blobs
from flujo_worker.store.postgres.budgets import (
    BudgetNotOpened,
    bind_opening,
    bind_reservations,
    claim_limited,
    over,
    settle,
)
from flujo_worker.store.postgres.health import HealthInPostgres
from flujo_worker.store.postgres.hook_calls import HookCallsInPostgres
from flujo_worker.store.postgres.make_entities import as_text, shown
from flujo_worker.store.postgres.model_guards import ModelGuardsInPostgres
from flujo_worker.store.postgres.permits import PermitsInPostgres
from flujo_worker.store.postgres.plan_moves import PlanMovesInPostgres
from flujo_worker.store.postgres.retention import RetentionInPostgres
from flujo_worker.store.postgres.statements import CLIENT, UNDONE, execute
from flujo_worker.store.postgres.tree import TreeInPostgres, read_envelopes
from flujo_worker.store.rows import plan_of, reply_of
from flujo_worker.store.shared_rules import HANDED_BACK_MOST, HANDED_BACK_OFTEN, MAX_FORKS, SUSPECT_AFTER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from threading import Event as Flag

    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Event
    from flujo_client.pipeline.context_info import Fields
    from flujo_client.plan.plan import Plan
    from flujo_client.serial import Packed
    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.values import Decision

DAYS_AHEAD = 2, 7
"""The days from today on for which partitions of events are made, before they come; what falls through is in the default one."""


class PostgresStore(
    TreeInPostgres,
    HealthInPostgres,
    HookCallsInPostgres,
    PlanMovesInPostgres,
    AdmissionInPostgres,
    RetentionInPostgres,
    PermitsInPostgres,
    ModelGuardsInPostgres,
):
    """The worker's store on Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold.
        prepare: whether statements may be prepared, on connections with their own session.
        stopping: set when the process ends, so that nothing waits for Postgres any longer.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        super().__init__(url, pool_max=pool_max, prepare=prepare, stopping=stopping)
        self._blobs = Blobs(self._rows)

    # leases

    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        parameters = {
            "id": member.id,
            "host": member.host,
            "pid": member.pid,
            "build": member.build,
            "code_build": member.code_build,
            "slots": member.slots,
            "queues": None if member.queues is None else list(member.queues),
            "schema": migrations()[-1].version,
            "lease_s": lease_s,
            "old": old,
            "keys": sorted(held),
        }

        def register(connection: psycopg.Connection[dict[str, Any]]) -> set[str]:
            with connection.transaction():
                if held:
                    execute(connection, "hold_limits_of", parameters)
                return {row["key"] for row in execute(connection, "register_worker", parameters)}

        return self._with_retry(register)

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        parameters = {"id": worker, "lease_s": lease_s, "keys": list(held), "fences": list(held.values())}
        rows = self._rows("renew", parameters)
        return Renewal(set(rows[0]["lost"]), rows[0]["is_to_stop"]) if rows else None

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        parameters = {"id": worker, "keys": list(held), "fences": list(held.values())}
        return {row["key"] for row in self._rows("lost_among", parameters)}

    def release_unowned(self, worker: str, kept: Collection[str], older_s: float) -> set[str]:
        parameters = {"worker": worker, "kept": sorted(kept), "older_s": older_s}
        return {row["key"] for row in self._rows("release_unowned", parameters)}

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        parameters = {"worker": worker, "keys": sorted(keys), "often": HANDED_BACK_OFTEN, "most": HANDED_BACK_MOST}
        parameters["is_broken"] = is_broken
        return {row["key"] for row in self._rows("hand_back", parameters)}

    def announce_stop(self, worker: str) -> None:
        """Record that a worker takes no more work."""
        self._do("request_stop", {"names": [worker]})

    def deregister_worker(self, worker: str) -> None:
        self._do("deregister_worker", {"id": worker})

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        return [(row["id"], row["pid"]) for row in self._rows("neighbours", {"host": host})]

    def bury(self, worker: str, max_lost: int) -> set[str]:
        return {row["key"] for row in self._rows("bury", {"id": worker, "max_lost": max_lost})}

    # ledger

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
        parameters: dict[str, Any] = {"key": key, "worker": worker, "max_lost": max_lost, "may_judge": may_judge}
        parameters |= {"room": room, "suspect_after": SUSPECT_AFTER}
        parameters |= {"fan_outs": list(fan_outs) or None, "reference": None, "fingerprint": None}
        parameters |= plan._asdict() if plan else {}
        try:
            return self._claim(parameters, to_reserve)
        except RowLocked:
            return Claim(refusal="locked")
        except psycopg.DataError as error:
            raise Unreadable(f"attempt {key} cannot be claimed: {error}", cause=error) from error

    def _claim(self, parameters: dict[str, Any], to_reserve: Sequence[Reservation]) -> Claim:
        if not to_reserve:
            rows = self._with_retry(lambda connection: execute(connection, "claim", parameters).fetchall(), waits=False)
            return _read_claim(rows[0] if rows else None, parameters)
        parameters |= bind_reservations(to_reserve)
        try:
            row = self._with_retry(lambda connection: claim_limited(connection, parameters), waits=False)
        except BudgetNotOpened:
            self._do("open_budgets", bind_opening(to_reserve))
            row = self._with_retry(lambda connection: claim_limited(connection, parameters), waits=False)
        claim = _read_claim(row, parameters)
        return claim if row is None or claim.fence is None else replace(claim, over=over(row, to_reserve))

    def locked_among(self, keys: Sequence[str]) -> set[str]:
        return {row["key"] for row in self._rows("locked_among", {"keys": list(keys)})}

    def locked_budgets(self, scopes: Collection[str]) -> set[str]:
        return {row["scope"] for row in self._rows("locked_budgets", {"scopes": list(scopes)})}

    def commit(self, decision: Decision) -> Committed:
        parameters = bind_decision(decision)
        notice = decision.notice
        also = _optional_statements(decision)
        settled = bind_settlement(notice) if notice.envelope.ticket.limits is not None else None
        if settled:
            parameters["spends"] = False  # settle.sql records it, for it must know whether it was the first to
        rest = _Rest(also, settled, ends=decision.end is not None)
        try:
            failpoints.hit("before_commit")
            row = self._with_retry(lambda connection: _conclude(connection, parameters, rest), waits=False)
        except psycopg.Error as error:
            if error.sqlstate != UNDONE:
                raise
            row = None
        return (
            Committed("merged", row.get("taken"), row.get("breach"), row.get("claim_id"))
            if row
            else self._refused(decision)
        )

    def _refused(self, decision: Decision) -> Committed:
        run, key = decision.notice.envelope.ticket.run, decision.notice.envelope.key
        notice = decision.notice
        self.spend(run, key, notice.fence, notice.outcome.usage, claim_id=notice.claim_id)
        rows = self._rows("verdict", {"key": key})
        verdict = _read_verdict(rows[0] if rows else None, decision)
        if verdict != "repeated" or decision.branch_end is None:
            return Committed(verdict)
        return Committed(verdict, self._lane(run, decision.branch_end.address)[1])

    def spend(self, run: str, key: str, fence: int, usage: Usage, *, claim_id: str | None = None) -> None:
        if usage.is_nothing:
            return
        spent = bind_spend(run, key, fence, usage, claim_id)

        def book(connection: psycopg.Connection[dict[str, Any]]) -> None:
            with connection.transaction():
                settle(connection, spent)

        self._with_retry(book)

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        rows = self._rows("spent_lately", {"reference": reference, "runs": runs})
        return [(row.pop("key"), Usage(**row)) for row in map(dict, rows)]

    def park(
        self, key: str, fence: int, reason: str, *, code: AwaitedCode | None = None, claim_id: str | None = None
    ) -> bool:
        awaited = None if code is None else stored_safely(code.to_tree())
        parameters = {
            "key": key,
            "fence": fence,
            "claim_id": claim_id,
            "reason": as_text(reason),
            "parked_for": awaited,
        }
        return bool(self._do("park", parameters))

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        parameters = {"model": model, "digest": digest, "fields": stored_safely(dict(fields))}
        return [orjson.loads(row["fields"]) for row in self._rows("context_fields", parameters)]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        return frozenset(row["model"] for row in self._rows("former_models", {"fingerprint": fingerprint}))

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        return [
            (row["fingerprint"], row["version"]) for row in self._rows("plans_of_run", {"run": run, "most": MAX_FORKS})
        ]

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        parts = [stored_safely(each.to_tree()) for each in versions]
        self._do("store_code", {"digests": [each.digest for each in versions], "parts": parts})

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        versions = {each.digest: each for each in steps.values()}
        parameters = {
            "digests": list(versions),
            "parts": [stored_safely(each.to_tree()) for each in versions.values()],
            "texts": [stored_safely(dict(each.texts)) for each in versions.values()],
            "fingerprint": fingerprint,
            "paths": list(steps),
            "versions": [each.digest for each in steps.values()],
        }
        self._do("store_code_of_steps", parameters)

    def code(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        rows = self._rows("code", {"digests": list(digests)})
        return {row["digest"]: CodeVersion.from_tree(orjson.loads(row["parts"])) for row in rows}

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
        return bool(self._rows("defer", bind_deferral(key, fence, claim_id, delay_s, event, waits_for)))

    def return_starved(
        self, key: str, fence: int, delay_s: float, event: Event, *, most: int, claim_id: str | None = None
    ) -> bool:
        return bool(self._rows("return_starved", {**bind_deferral(key, fence, claim_id, delay_s, event), "most": most}))

    def postpone(self, key: str, delay_s: float) -> None:
        self._do("postpone", {"key": key, "delay_s": delay_s})

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> bool:
        if not self._rows("stop_run", {"run": run}):
            return False
        parameters = {"run": run, "status": status, "reason": as_text(reason)}
        return self._with_retry(lambda connection: _wind_down(connection, parameters))

    def store_blobs(self, blobs: Sequence[Packed]) -> None:
        self._blobs.store(blobs)

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        return self._blobs.fetch(digests)

    def reply(self, key: str) -> Reply | None:
        rows = self._rows("reply", {"key": key}, binary=True)
        return reply_of(rows[0]) if rows else None

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        return [
            reply_of(row) for row in self._rows("replies", {"run": run, "address": address, "step": step}, binary=True)
        ]

    def plan(self, fingerprint: str) -> Plan | None:
        rows = self._rows("plan", {"fingerprint": fingerprint})
        return plan_of(rows[0], fingerprint) if rows else None

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        parameters = {
            "run": run,
            "attempt": key,
            "names": [as_text(event.name) for event in events],
            "levels": [event.level for event in events],
            "data": [shown(event.data) for event in events],
            "at": [event.at for event in events],
        }
        self._do("note", parameters)

    # backlog

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        self._do("mark_sent", {"keys": list(ages), "ages": list(ages.values())}, home=CLIENT)

    def begin_sweep(self, worker: str, every_s: float) -> bool:
        return bool(self._rows("begin_sweep", {"worker": worker, "every_s": every_s}))

    def epoch_start(self, epoch: str) -> float:
        return float(self._rows("epoch", {"epoch": epoch})[0]["started_at"].timestamp())

    def queues(self) -> list[str]:
        return [row["queue"] for row in self._rows("queues", {})]

    def due(
        self,
        broker: BrokerSnapshot,
        *,
        judge: str | None,
        max_lost: int,
        limit: int,
        publish: Publish = publish_nothing,
        damaged: Damaged = ignore,
    ) -> list[Due]:
        parameters = {
            "epoch_start": broker.epoch_start,
            "queues": list(broker.heads),
            "heads": list(broker.heads.values()),
            "judge": judge,
            "max_lost": max_lost,
            "limit": limit,
        }

        broken: list[tuple[str, str, int | None, Unreadable]] = []

        def mark_and_publish(connection: psycopg.Connection[dict[str, Any]]) -> list[Due]:
            broken.clear()
            with connection.transaction():
                rows = execute(connection, "due", parameters).fetchall()
                due = [Due(row["why"], each) for row, each in read_envelopes(rows, lambda *row: broken.append(row))]
                publish(due)
            return due

        due = self._with_retry(mark_and_publish)
        for row in broken:
            damaged(*row)
        return due

    def expire_questions(self, limit: int) -> int:
        return self._do("expire_questions", {"limit": limit})

    def rotate_event_partitions(self, keep_days: int | None) -> None:
        self._do("rotate_event_partitions", {"first": DAYS_AHEAD[0], "last": DAYS_AHEAD[1], "keep": keep_days})

    def poisoned(
        self, *, judge: str, max_lost: int, limit: int, damaged: Damaged = ignore
    ) -> list[tuple[Envelope, int]]:
        taken = self._rows("poisoned", {"judge": judge, "max_lost": max_lost, "limit": limit})
        fences = {row["key"]: row["fence"] for row in taken}
        rows = self._rows("envelopes", {"keys": list(fences)}) if fences else []
        found = read_envelopes(rows, lambda run, key, _, error: damaged(run, key, fences[key], error))
        return [(envelope, fences[envelope.key]) for _, envelope in found]

    def runs_to_stop(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired", "failed"]]]:
        rows = self._rows("runs_to_stop", {"limit": limit})
        return [
            (row["id"], "failed" if row["failed"] else "cancelled" if row["cancelled"] else "expired") for row in rows
        ]

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        rows = self._rows("parked", {"limit": limit, "but": list(but)})
        return [(row["id"], row["reference"], row["fingerprint"]) for row in rows]

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        return [
            (row["id"], row["reference"], row["fingerprint"], AwaitedCode.from_tree(orjson.loads(row["parked_for"])))
            for row in self._rows("parked_for_code", {"limit": limit})
        ]

    def unpark(self, run: str, worker: str) -> bool:
        return bool(self._do("unpark", {"run": run, "worker": worker}))


def _optional_statements(decision: Decision) -> dict[str, dict[str, Any]]:
    """Return the optional statements of a merge, which few merges have."""
    statements = {}
    if decision.notice.outcome.corrections:
        statements["record_corrections"] = bind_corrections([decision.notice])
    if decision.lane_left is not None:
        statements["leave_lane"] = bind_lane_left(decision, decision.lane_left)
    return statements


class _Rest(NamedTuple):
    """Further parts of some merges: parameters of statements by their names, and of `settle.sql`; and whether the run ends."""

    also: Mapping[str, Mapping[str, Any]]
    settled: Mapping[str, Any] | None
    ends: bool


def _conclude(
    connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any], rest: _Rest
) -> dict[str, Any] | None:
    """Merge. Further parts need a transaction around it: they are stored with the merge or not at all."""
    with connection.transaction() if rest.also or rest.settled else nullcontext():
        row = execute(connection, "conclude", parameters).fetchone()
        merged = row if row and row["merged"] else None
        for statement, given in rest.also.items() if merged else ():
            cursor = execute(connection, statement, given)
            found = cursor.fetchone() if cursor.description else None
            merged = found or merged
        if merged and rest.settled:
            merged["breach"] = settle(connection, rest.settled, ends=rest.ends)
    failpoints.hit("answer_lost")
    return merged


def _wind_down(connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]) -> bool:
    while True:
        with connection.transaction(), connection.pipeline():
            execute(connection, "wind_down_attempts", parameters)
            execute(connection, "wind_down_scopes", parameters)
            done = execute(connection, "wind_down_run", parameters)
            execute(connection, "release", parameters)
        if done.rowcount or not execute(connection, "live_run", parameters).fetchone():
            return bool(done.rowcount)


def _read_claim(row: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> Claim:
    if row is None:
        return Claim(refusal="unknown")
    if row["fence"] is not None:
        return Claim(row["fence"], aborted=row["aborted"], claim_id=row["claim_id"])
    refusal = _refusal(row, asked["reference"])
    mine = refusal == "busy" and _is_mine(row, asked["worker"])
    if mine:
        return Claim(row["standing_fence"], refusal, row["aborted"], claim_id=row["claim_id"])
    return Claim(refusal=refusal, in_company=row["in_company"] if refusal == "suspect" else 0)


def _is_mine(row: Mapping[str, Any], worker: str) -> bool:
    """Return whether the claim had been applied and its answer was lost: the caller, who runs no second copy, may continue under that fence."""
    return bool(row["was"] == "running" and row["holder"] == worker)


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
