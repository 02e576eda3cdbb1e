"""Stop workers on an operator's request, and report when they have stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.store.postgres.pool import RetryingPool

if TYPE_CHECKING:
    from collections.abc import Collection


class StopRequests(RetryingPool):
    """Requests to stop, in the workers' rows."""

    def request(self, names: Collection[str]) -> list[str]:
        """Ask the live workers that have one of these ids, or are on one of these hosts, to stop in order; return their ids."""
        return sorted(row["id"] for row in self._rows("request_stop", {"names": list(names)}))

    def still_alive(self, ids: Collection[str]) -> list[str]:
        """Return those of these workers that have not ended."""
        return [row["id"] for row in self._rows("still_alive", {"ids": [each.split("~")[0] for each in ids]})]
