"""Concurrency limits, circuit breakers and rate limits on Postgres."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from flujo_client.contract.limits import GuardRow
from flujo_client.serial import stored_safely
from flujo_worker.domain.permit import ASK_AGAIN_S, PATIENCE_S, PermitRequest
from flujo_worker.ports import ClaimId
from flujo_worker.store.postgres.bind import bind_deferral
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, Connection, execute


class LimitsInPostgres(InPostgres):
    """The port `LimitStore`."""

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
