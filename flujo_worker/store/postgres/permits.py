"""The permits of concurrency limits on Postgres."""

from __future__ import annotations

from typing import Any

import psycopg

from flujo_worker.domain.permit import ASK_AGAIN_S, PATIENCE_S, PermitRequest
from flujo_worker.store.postgres.bind import bind_deferral
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import execute


class PermitsInPostgres(RetryingPool):
    """The port `Permits`."""

    def request_permit(self, request: PermitRequest) -> bool:
        parameters = {"name": request.name, "at_once": request.at_once, "key": request.key, "fence": request.fence}

        def ask(connection: psycopg.Connection[dict[str, Any]]) -> bool:
            with connection.transaction() as asking:
                execute(connection, "hold_limit", parameters)
                row = execute(connection, "request_permit", parameters).fetchone()
                if row is None or row["is_granted"]:
                    return True
                if request.on_full == "drop":
                    raise psycopg.Rollback(asking)  # it does not join the line
                waiting = request.waiting(row["in_use"])
                execute(
                    connection,
                    "defer",
                    bind_deferral(request.key, request.fence, request.claim_id, ASK_AGAIN_S, waiting),
                )
            if request.on_full == "cancel_oldest":
                given = {"name": request.name, "at_once": request.at_once, "key": request.key, "run": request.run}
                execute(connection, "cancel_oldest", {**given, "reason": request.replacement})
            return False

        return self._with_retry(ask, waits=False)

    def release_permit(self, key: str, fence: int, name: str) -> list[str]:
        return self._offer(key, fence, name)

    def offer_permits(self) -> list[str]:
        return self._offer(None, None, None)

    def _offer(self, key: str | None, fence: int | None, name: str | None) -> list[str]:
        parameters = {"key": key, "fence": fence, "name": name, "patience_s": PATIENCE_S}
        return [row["key"] for row in self._rows("offer_permits", parameters)]
