"""Stop workers and runs on an operator's request, and report when workers have stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT

if TYPE_CHECKING:
    from collections.abc import Collection

    from flujo_client.address import AttemptKey


class StopRequests(InPostgres):
    def request(self, names: Collection[str]) -> list[str]:
        """Ask the live workers that have one of these ids, or are on one of these hosts, to stop in order; return their ids."""
        return sorted(row["id"] for row in self._pool.rows("request_stop", {"names": list(names)}))

    def still_alive(self, ids: Collection[str]) -> list[str]:
        """Return those of these workers that have not ended."""
        return [row["id"] for row in self._pool.rows("still_alive", {"ids": [each.split("~")[0] for each in ids]})]

    def cancel_run_of(self, key: AttemptKey) -> bool | None:
        """Cancel the run of a revoked attempt, unless that has ended; return whether it was cancelled, None if there is no such run."""
        found = self._pool.rows("live_attempt", {"key": str(key), "run": key.run})
        if not found or not found[0]["is_live"]:
            return False if found else None
        reason = {"run": key.run, "actor": "celery control revoke", "reason": f"attempt {key} was revoked"}
        return bool(self._pool.do("cancel", reason, home=CLIENT))
