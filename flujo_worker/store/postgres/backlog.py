"""The queries of the sweeper on Postgres."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from flujo_client.contract.envelope import Envelope
from flujo_client.serial import storable_text
from flujo_worker.errors import Unreadable
from flujo_worker.ports import BrokerSnapshot, Damaged, Due, PoisonedAttempt, Publish, ignore
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, Connection, execute
from flujo_worker.store.rows import envelope_of

logger = logging.getLogger(__name__)


class BacklogInPostgres(InPostgres):
    def mark_sent(self, ages: Mapping[str, float]) -> None:
        self._pool.do("mark_sent", {"keys": list(ages), "ages": list(ages.values())}, home=CLIENT)

    def begin_sweep(self, worker: str, every_s: float) -> bool:
        return bool(self._pool.rows("begin_sweep", {"worker": worker, "every_s": every_s}))

    def epoch_start(self, epoch: str) -> float:
        return float(self._pool.rows("epoch", {"epoch": epoch})[0]["started_at"].timestamp())

    def queues(self) -> list[str]:
        return [row["queue"] for row in self._pool.rows("queues", {})]

    def due(
        self,
        broker: BrokerSnapshot,
        *,
        judge: str | None,
        max_lost: int,
        limit: int,
        publish: Publish = ignore,
        damaged: Damaged = ignore,
    ) -> list[Due]:
        heads = {"queues": list(broker.heads), "heads": list(broker.heads.values())}
        given = {"epoch_start": broker.epoch_start, "judge": judge, "max_lost": max_lost, "limit": limit, **heads}
        broken: list[tuple[str, str, int | None, Unreadable]] = []

        def mark_and_publish(connection: Connection) -> list[Due]:
            broken.clear()
            with connection.transaction():
                rows = execute(connection, "due", given).fetchall()
                read = read_envelopes(rows, lambda *row: broken.append(row))
                due = [Due(row["why"], each, row["fence"]) for row, each in read]
                publish(due)
            return due

        due = self._pool.with_retry(mark_and_publish)
        for row in broken:
            damaged(*row)
        return due

    def envelopes(self, keys: Collection[str]) -> list[Envelope]:
        rows = self._pool.rows("envelopes", {"keys": list(keys)}) if keys else []
        found = {envelope.key: envelope for _, envelope in read_envelopes(rows, _log)}
        return [found[key] for key in keys if key in found]

    def hand_over_events(self, limit: int) -> int:
        return len(self._pool.rows("hand_over_events", {"limit": limit, "grace_s": 0.0})[0]["given"])

    def expire_questions(self, limit: int) -> int:
        return self._pool.do("expire_questions", {"limit": limit})

    def poisoned(self, *, judge: str, max_lost: int, limit: int, damaged: Damaged = ignore) -> list[PoisonedAttempt]:
        taken = self._pool.rows("poisoned", {"judge": judge, "max_lost": max_lost, "limit": limit})
        claims = {row["key"]: (row["fence"], row["how"]) for row in taken}
        rows = self._pool.rows("envelopes", {"keys": list(claims)}) if claims else []
        found = read_envelopes(rows, lambda run, key, _, error: damaged(run, key, claims[key][0], error))
        return [PoisonedAttempt(envelope, *claims[envelope.key]) for _, envelope in found]

    def runs_to_stop(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired", "failed"]]]:
        rows = self._pool.rows("runs_to_stop", {"limit": limit})
        return [
            (row["id"], "failed" if row["failed"] else "cancelled" if row["cancelled"] else "expired") for row in rows
        ]

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> bool:
        if not self._pool.rows("stop_run", {"run": run}):
            return False
        parameters = {"run": run, "status": status, "reason": storable_text(reason)}
        return self._pool.with_retry(lambda connection: _wind_down(connection, parameters))


def _wind_down(connection: Connection, parameters: Mapping[str, Any]) -> bool:
    while True:
        with connection.transaction(), connection.pipeline():
            execute(connection, "wind_down_attempts", parameters)
            execute(connection, "wind_down_scopes", parameters)
            done = execute(connection, "wind_down_run", parameters)
            execute(connection, "release", parameters)
        if done.rowcount or not execute(connection, "live_run", parameters).fetchone():
            return bool(done.rowcount)


def read_envelopes(rows: Iterable[Mapping[str, Any]], damaged: Damaged) -> list[tuple[Mapping[str, Any], Envelope]]:
    """Rebuild envelopes, each with its row; `damaged` gets those that cannot be read."""
    found = []
    for row in rows:
        try:
            found.append((row, envelope_of(row)))
        except Unreadable as error:
            damaged(row["run"], row["key"], None, error)
    return found


def _log(_run: str, _key: str, _fence: int | None, error: Unreadable) -> None:
    logger.error("%s; a sweep will fail its run", error.message)
