"""Retention's part of the store on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from flujo_worker.domain.retention import KeepRule


class RetentionInPostgres(RetryingPool):
    """The port `Retention`."""

    def begin_pruning(self, every_s: float) -> bool:
        return bool(self._rows("begin_pruning", {"every_s": every_s}))

    def prune_runs(self, rules: Sequence[KeepRule], limit: int) -> list[str]:
        parameters = _bind(rules) | {"limit": limit}

        def prune(connection: psycopg.Connection[dict[str, Any]]) -> list[str]:
            with connection.transaction():
                held = _ids(execute(connection, "hold_aged_runs", parameters))
                gone = _ids(execute(connection, "prune_runs", {"runs": held})) if held else []
                if gone:
                    execute(connection, "prune_budgets", {"runs": gone})
                return gone

        return self._with_retry(prune)


def _bind(rules: Sequence[KeepRule]) -> dict[str, Any]:
    return {
        "statuses": [rule.status for rule in rules],
        "pipelines": [rule.pipeline for rule in rules],
        "ages": [rule.older_s for rule in rules],
    }


def _ids(cursor: psycopg.Cursor[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in cursor.fetchall()]
