"""The store on Postgres: binds statements and maps rows, and decides nothing.

Every act is one statement and commits by itself. What fails because Postgres is away, was restarted, or chose this statement
to break a deadlock is tried again until it answers: a commit whose answer was lost finds its own work done (`verdict.sql`).
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from flujo_client.pipeline.plan import Plan
from flujo_client.serial import Packed
from flujo_worker import failpoints
from flujo_worker.errors import StoreError
from flujo_worker.ports import Broker, Claim, Due, Member, Publish, Refusal, Verdict, publish_nothing
from flujo_worker.store.rows import as_json, as_text, bind_decision, bind_usage, envelope_of
from flujo_worker.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from threading import Event as Flag

    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Event, Usage
    from flujo_worker.domain.values import Decision

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AWAY = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)


class PostgresStore:
    """The worker's way to Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold.
        prepare: whether statements may be prepared; off for PgBouncer before 1.21 in transaction mode.
        stopping: set when the process is going down, so that nobody waits for Postgres any longer.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self._stopping = stopping
        kwargs = {"autocommit": True, "row_factory": dict_row, "prepare_threshold": 0 if prepare else None}
        self._pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
            url,
            min_size=1,
            max_size=pool_max,
            kwargs=kwargs,
            configure=_plan_once if prepare else None,
            open=False,
            timeout=5,
            name="flujo",
            reconnect_timeout=2,
        )

    def open(self) -> PostgresStore:
        """Open the pool; connections are made as they are needed."""
        self._pool.open(wait=False)
        return self

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=2)

    def _patiently(self, act: Callable[[psycopg.Connection[dict[str, Any]]], T]) -> T:
        """Do one act on a connection, again and again while Postgres is away."""
        wait = 0.02
        while True:
            try:
                connection = self._pool.getconn()  # not `connection()`: there is no transaction to end
                try:
                    return act(connection)
                finally:
                    self._pool.putconn(connection)
            except _AWAY as error:
                if self._stopping is not None and self._stopping.is_set():
                    raise StoreError(f"Postgres is away and this worker is stopping: {error}", cause=error) from error
                logger.warning("postgres is away, trying again: %s", str(error).strip().splitlines()[:1])
            except PoolClosed as error:
                raise StoreError("the store is closed", cause=error) from error
            time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            self._pool.check()
            wait = min(wait * 2, 1.0)

    def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self._patiently(lambda connection: connection.execute(statement(name), parameters).fetchall())

    def _do(self, name: str, parameters: Mapping[str, Any]) -> int:
        return self._patiently(lambda connection: connection.execute(statement(name), parameters).rowcount)

    # leases

    def enlist(self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()) -> set[str]:
        parameters = {
            "id": member.id,
            "host": member.host,
            "pid": member.pid,
            "build": member.build,
            "slots": member.slots,
            "lease_s": lease_s,
            "old": old,
            "keys": sorted(held),
        }
        return {row["key"] for row in self._rows("enlist", parameters)}

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> set[str] | None:
        parameters = {"id": worker, "lease_s": lease_s, "keys": list(held), "fences": list(held.values())}
        rows = self._rows("renew", parameters)
        return set(rows[0]["lost"]) if rows else None

    def disown(self, worker: str, kept: Collection[str], older_s: float) -> set[str]:
        parameters = {"worker": worker, "kept": sorted(kept), "older_s": older_s}
        return {row["key"] for row in self._rows("disown", parameters)}

    def retire(self, worker: str) -> None:
        self._do("retire", {"id": worker})

    # ledger

    def claim(self, key: str, worker: str, *, max_lost: int, may_judge: bool = True) -> Claim:
        parameters = {"key": key, "worker": worker, "max_lost": max_lost, "may_judge": may_judge}
        rows = self._rows("claim", parameters)
        return _read_claim(rows[0] if rows else None, worker)

    def commit(self, decision: Decision) -> Verdict:
        parameters = bind_decision(decision)
        try:
            failpoints.hit("before_commit")
            merged = self._patiently(lambda connection: self._conclude(connection, parameters))
        except psycopg.errors.DivisionByZero:
            merged = 0
        if merged:
            return "merged"
        rows = self._rows("verdict", {"key": parameters["key"]})
        verdict = _read_verdict(rows[0] if rows else None, decision)
        if verdict != "repeated":
            self.spend(parameters["run"], parameters["key"], parameters["fence"], decision.notice.outcome.usage)
        return verdict

    def _conclude(self, connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]) -> int:
        row = connection.execute(statement("conclude"), parameters).fetchone()
        failpoints.hit("answer_lost")
        return int(row["merged"]) if row else 0

    def spend(self, run: str, key: str, fence: int, usage: Usage) -> None:
        if not usage.is_nothing:
            self._do("spend", {"run": run, "key": key, "fence": fence, **bind_usage(usage)})

    def park(self, key: str, fence: int, reason: str) -> bool:
        return bool(self._do("park", {"key": key, "fence": fence, "reason": as_text(reason)}))

    def stop(self, run: str, status: Literal["cancelled", "expired"], reason: str) -> bool:
        if not self._rows("stop_run", {"run": run}):
            return False
        parameters = {"run": run, "status": status, "reason": as_text(reason)}
        return self._patiently(lambda connection: _wind_down(connection, parameters))

    def keep(self, blobs: Sequence[Packed]) -> None:
        for blob in blobs:
            self._do("keep_blob", {"digest": blob.digest, "body": bytes(blob)})

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        rows = self._rows("blobs", {"digests": list(digests)})
        return {row["digest"]: Packed.from_bytes(row["body"]) for row in rows}

    def plan(self, fingerprint: str) -> Plan | None:
        rows = self._rows("plan", {"fingerprint": fingerprint})
        return Plan.from_tree(rows[0]["plan"]) if rows else None

    def note(self, run: str, events: Sequence[Event], *, key: str | None = None) -> None:
        parameters = {
            "run": run,
            "attempt": key,
            "names": [as_text(event.name) for event in events],
            "levels": [event.level for event in events],
            "data": [as_json(event.data) for event in events],
        }
        self._do("note", parameters)

    # backlog

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        self._do("mark_sent", {"keys": list(ages), "ages": list(ages.values())})

    def begin_sweep(self, worker: str, every_s: float) -> bool:
        return bool(self._rows("begin_sweep", {"worker": worker, "every_s": every_s}))

    def epoch_start(self, epoch: str) -> float:
        return float(self._rows("epoch", {"epoch": epoch})[0]["started_at"].timestamp())

    def queues(self) -> list[str]:
        return [row["queue"] for row in self._rows("queues", {})]

    def due(
        self, broker: Broker, *, may_judge: bool, max_lost: int, limit: int, publish: Publish = publish_nothing
    ) -> list[Due]:
        parameters = {
            "epoch_start": broker.epoch_start,
            "queues": list(broker.heads),
            "heads": list(broker.heads.values()),
            "may_judge": may_judge,
            "max_lost": max_lost,
            "limit": limit,
        }

        def mark_and_publish(connection: psycopg.Connection[dict[str, Any]]) -> list[Due]:
            with connection.transaction():
                due = [Due(row["why"], envelope_of(row)) for row in connection.execute(statement("due"), parameters)]
                publish(due)
            return due

        return self._patiently(mark_and_publish)

    def poisoned(self, *, max_lost: int, limit: int) -> list[tuple[Envelope, int]]:
        taken = self._rows("poisoned", {"max_lost": max_lost, "limit": limit})
        fences = {row["key"]: row["fence"] for row in taken}
        rows = self._rows("envelopes", {"keys": list(fences)}) if fences else []
        return [(envelope_of(row), fences[row["key"]]) for row in rows]

    def turned(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired"]]]:
        rows = self._rows("turned", {"limit": limit})
        return [(row["id"], "cancelled" if row["asked"] else "expired") for row in rows]

    def parked(self, limit: int) -> list[tuple[str, str, str]]:
        return [(row["id"], row["reference"], row["fingerprint"]) for row in self._rows("parked", {"limit": limit})]

    def unpark(self, run: str) -> bool:
        return bool(self._do("unpark", {"run": run}))


def _plan_once(connection: psycopg.Connection[Any]) -> None:
    """Each statement looks up rows by key, so one plan serves all; planning one anew costs more than running it."""
    connection.execute("SET plan_cache_mode = force_generic_plan")


def _wind_down(connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]) -> bool:
    while True:
        with connection.transaction(), connection.pipeline():
            connection.execute(statement("wind_down_attempts"), parameters)
            connection.execute(statement("wind_down_scopes"), parameters)
            done = connection.execute(statement("wind_down_run"), parameters)
        if done.rowcount or not connection.execute(statement("live_run"), parameters).fetchone():
            return bool(done.rowcount)


def _read_claim(row: Mapping[str, Any] | None, worker: str) -> Claim:
    if row is None:
        return Claim(refusal="unknown")
    if row["fence"] is not None:
        return Claim(fence=row["fence"])
    refusal = _refusal(row)
    mine = refusal == "busy" and _is_mine(row, worker)
    return Claim(refusal=refusal, fence=row["standing_fence"] if mine else None)


def _is_mine(row: Mapping[str, Any], worker: str) -> bool:
    """The claim had been applied and its answer was lost: the caller, who runs no second copy, may go on under that fence."""
    return bool(row["was"] == "running" and row["holder"] == worker)


def _refusal(row: Mapping[str, Any]) -> Refusal:
    if row["was"] not in ("ready", "queued", "running"):
        return "ended"
    if row["run_status"] == "parked":
        return "parked"
    if row["stopped"] or row["run_status"] not in ("queued", "running"):
        return "stopped"
    return "busy" if row["leased"] else "unleased"


def _read_verdict(row: Mapping[str, Any] | None, decision: Decision) -> Verdict:
    """Why nothing was merged. The same status under the same fence is this very outcome: only its holder could close it."""
    if row is None:
        return "stale"
    if row["status"] == decision.close.status and row["fence"] == decision.notice.fence:
        return "repeated"
    if row["cancelled"] or row["run_status"] in ("cancelled", "expired"):
        return "stopped"
    return "stale"
