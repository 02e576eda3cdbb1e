"""The stores on Postgres: they bind statements and map rows, and decide nothing.

Every operation is one statement and one transaction, except winding down, and merges of outcomes with repairs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg

from flujo_client.contract.limits import GuardRow
from flujo_client.contract.rows import attempt_record, run_record, scope_record
from flujo_client.serial import dumps, stored_safely
from flujo_worker.domain.permit import ASK_AGAIN_S, PATIENCE_S, PermitRequest
from flujo_worker.ports import ClaimId, Member, PendingHookCall, Records, Renewal, Reply, Room, WorkerStores
from flujo_worker.store.migrate import migrations
from flujo_worker.store.postgres.admission import AdmissionInPostgres
from flujo_worker.store.postgres.attempts import AttemptsInPostgres
from flujo_worker.store.postgres.backlog import BacklogInPostgres
from flujo_worker.store.postgres.bind import bind_deferral, columns
from flujo_worker.store.postgres.blobs import BlobsInPostgres
from flujo_worker.store.postgres.code import CodeInPostgres, PlanMovesInPostgres
from flujo_worker.store.postgres.entities import NEW_EVENT
from flujo_worker.store.postgres.pool import InPostgres, RetryingPool
from flujo_worker.store.postgres.scopes import ScopesInPostgres
from flujo_worker.store.postgres.statements import CLIENT, Connection, execute
from flujo_worker.store.postgres.units import BatchesInPostgres, UnitsInPostgres
from flujo_worker.store.postgres.upkeep import ExportsInPostgres, RetentionInPostgres, SchedulesInPostgres
from flujo_worker.store.rows import reply_of
from flujo_worker.store.shared_rules import HANDED_BACK_MOST, HANDED_BACK_OFTEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from threading import Event as Flag
    from typing import Self

    from flujo_client.contract.outcome import Event


class LeasesInPostgres(InPostgres):
    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        queues, schema = None if member.queues is None else list(member.queues), migrations()[-1].version
        own = {"queues": queues, "schema": schema, "lease_s": lease_s, "old": old, "keys": sorted(held)}
        parameters = asdict(member) | own

        def register(connection: Connection) -> set[str]:
            with connection.transaction():
                if held:
                    execute(connection, "hold_limits_of", parameters)
                return {row["key"] for row in execute(connection, "register_worker", parameters)}

        return self._pool.with_retry(register)

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        parameters = {"id": worker, "lease_s": lease_s, "held": dumps(held).decode()}
        rows = self._pool.rows("renew", parameters)
        return Renewal(set(rows[0]["lost"]), rows[0]["is_to_stop"], rows[0]["sharing"]) if rows else None

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        parameters = {"id": worker, "held": dumps(held).decode()}
        return {row["key"] for row in self._pool.rows("lost_among", parameters)}

    def release_unowned(
        self, worker: str, kept: Collection[str], older_s: float, *, how: str | None = None
    ) -> set[str]:
        parameters = {"worker": worker, "kept": sorted(kept), "older_s": older_s, "how": how}
        return {row["key"] for row in self._pool.rows("release_unowned", parameters)}

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        parameters = {"worker": worker, "keys": sorted(keys), "often": HANDED_BACK_OFTEN, "most": HANDED_BACK_MOST}
        parameters["is_broken"] = is_broken
        return {row["key"] for row in self._pool.rows("hand_back", parameters)}

    def deregister_worker(self, worker: str) -> None:
        self._pool.do("deregister_worker", {"id": worker})

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        return [(row["id"], row["pid"]) for row in self._pool.rows("neighbours", {"host": host})]

    def bury(self, worker: str, max_lost: int) -> set[str]:
        return {row["key"] for row in self._pool.rows("bury", {"id": worker, "max_lost": max_lost})}


class LimitsInPostgres(InPostgres):
    def request_permit(self, request: PermitRequest) -> bool:
        parameters = {"name": request.name, "at_once": request.at_once, "key": request.key, "fence": request.fence}

        def ask(connection: Connection) -> bool:
            with connection.transaction() as asking:
                execute(connection, "hold_limit", parameters)
                row = execute(connection, "request_permit", parameters).fetchone()
                if row is None or row["is_granted"]:
                    return True
                if request.on_full == "drop":
                    raise psycopg.Rollback(asking)  # it does not join the line
                claim, waiting = ClaimId(request.key, request.fence, request.claim_id), request.waiting(row["in_use"])
                execute(connection, "defer", bind_deferral(claim, ASK_AGAIN_S, waiting, request.waits_for))
            if request.on_full == "cancel_oldest":
                given = {"name": request.name, "at_once": request.at_once, "key": request.key, "run": request.run}
                execute(connection, "cancel_oldest", {**given, "reason": request.replacement})
            return False

        return self._pool.with_retry(ask, waits=False)

    def release_permit(self, key: str, fence: int, name: str) -> list[str]:
        return self._offer(key, fence, name)

    def offer_permits(self) -> list[str]:
        return self._offer(None, None, None)

    def guard_rows(self) -> list[GuardRow]:
        return [GuardRow.of(row) for row in self._pool.rows("guard_rows", {}, home=CLIENT)]

    def write_file_settings(self, rows: Sequence[GuardRow]) -> None:
        parameters = {
            "guards": [row.guard for row in rows],
            "models": [row.model for row in rows],
            "settings": [stored_safely(dict(row.from_file or {})) for row in rows],
        }
        self._pool.do("write_file_settings", parameters)

    def _offer(self, key: str | None, fence: int | None, name: str | None) -> list[str]:
        parameters = {"key": key, "fence": fence, "name": name, "patience_s": PATIENCE_S}
        return [row["key"] for row in self._pool.rows("offer_permits", parameters)]


class HookCallsInPostgres(InPostgres):
    def pending(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        rows = self._pool.rows("pending_hook_calls", {"worker": worker, "limit": limit, "may_judge": may_judge})
        return [PendingHookCall(row.pop("run_id"), **row) for row in rows]

    def take(self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared") -> int | None:
        rows = self._pool.rows("take_call", {**_named(call), "worker": worker, "may_judge": may_judge, "room": room})
        return int(rows[0]["losses_alone"]) if rows else None

    def release(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        self._pool.do("release_call", {**_named(call), "worker": worker, "losses": losses})

    def settle(self, call: PendingHookCall, worker: str) -> None:
        self._pool.do("settle_call", {**_named(call), "worker": worker})


def _named(call: PendingHookCall) -> dict[str, str]:
    return {"run": call.run, "payload": call.payload, "attempt": call.attempt}


class RecordsInPostgres(InPostgres):
    def reply(self, key: str) -> Reply | None:
        rows = self._pool.rows("reply", {"key": key}, binary=True)
        return reply_of(rows[0]) if rows else None

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        rows = self._pool.rows("replies", {"run": run, "address": address, "step": step}, binary=True)
        return [reply_of(row) for row in rows]

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        self._pool.do("note", {"run": run, "attempt": key, **columns("event", NEW_EVENT, events)})

    def read(self, run: str) -> Records:
        found, *rest = (self._pool.rows(name, {"run": run}, home=CLIENT) for name in ("run", "attempts", "scopes"))
        return Records(run_record(found[0]), list(map(attempt_record, rest[0])), list(map(scope_record, rest[1])))


class PostgresStores(WorkerStores):
    """The worker's stores on Postgres, over a `RetryingPool` with these arguments."""

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self.pool = pool = RetryingPool(url, pool_max=pool_max, prepare=prepare, stopping=stopping)
        scopes = ScopesInPostgres(pool)
        super().__init__(
            leases=LeasesInPostgres(pool),
            attempts=AttemptsInPostgres(pool, scopes),
            scopes=scopes,
            backlog=BacklogInPostgres(pool),
            blobs=BlobsInPostgres(pool),
            records=RecordsInPostgres(pool),
            code=CodeInPostgres(pool),
            plan_moves=PlanMovesInPostgres(pool),
            hook_calls=HookCallsInPostgres(pool),
            admission=AdmissionInPostgres(pool),
            limits=LimitsInPostgres(pool),
            retention=RetentionInPostgres(pool),
            units=UnitsInPostgres(pool),
            exports=ExportsInPostgres(pool),
            batches=BatchesInPostgres(pool),
            schedules=SchedulesInPostgres(pool),
        )

    def open(self) -> Self:
        self.pool.open()
        return self

    def close(self) -> None:
        self.pool.close()
