"""Retention's part of the store on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import execute

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from flujo_worker.domain.retention import RetentionRule

MOST: Final = 2**31 - 1


class RetentionInPostgres(RetryingPool):
    """The port `Retention`."""

    def begin_pruning(self, every_s: float) -> bool:
        return bool(self._rows("begin_pruning", {"every_s": every_s}))

    def prune_runs(self, rules: Sequence[RetentionRule], limit: int, *, is_summarized: bool = False) -> list[str]:
        parameters = _bind(rules) | {"limit": limit}

        def prune(connection: psycopg.Connection[dict[str, Any]]) -> list[str]:
            with connection.transaction():
                held = {"runs": _ids(execute(connection, "hold_aged_runs", parameters))}
                if not held["runs"] or _missed(execute(connection, "mark_blobs", held)):
                    return []
                gone = _ids(execute(connection, "prune_runs", held | {"is_summarized": is_summarized}))
                execute(connection, "prune_budgets", {"runs": gone})
                return gone

        return self._with_retry(prune)

    def count_aged_runs(self, rules: Sequence[RetentionRule]) -> dict[tuple[str, str], int]:
        """Count the runs that `prune_runs` would delete, without their child runs: by pipeline and how they ended."""
        rows = self._rows("count_aged_runs", _bind(rules) | {"limit": MOST})
        return {(row["pipeline"], row["status"]): row["runs"] for row in rows}

    def prune_summaries(self, older_s: float, limit: int) -> None:
        self._do("prune_summaries", {"older_s": older_s, "limit": limit})

    def sweep_blobs(self, limit: int, *, every_s: float, unused_s: float) -> bool:
        self._do("begin_marking", {"every_s": every_s, "unused_s": unused_s})
        rows = self._rows("marked_to", {"limit": limit})
        if not rows:
            return False
        [search] = rows
        if search["marked_to"] is None:
            [swept] = self._rows("sweep_blobs", {"limit": limit, "unused_s": unused_s})
            return bool(swept["looked_at"])
        if any(row["missed"] for row in self._rows("mark_blobs", {"runs": search["runs"]})):
            return False
        to = search["runs"][-1] if search["runs"] else None
        self._do("advance_marking", {"since": search["since"], "from": search["marked_to"], "to": to})
        return True

    def prune_bookkeeping(self, older_s: float) -> int:
        return int(self._rows("prune_bookkeeping", {"older_s": older_s})[0]["gone"])


def _bind(rules: Sequence[RetentionRule]) -> dict[str, Any]:
    return {
        "statuses": [rule.status for rule in rules],
        "pipelines": [rule.pipeline for rule in rules],
        "ages": [rule.older_s for rule in rules],
    }


def _ids(cursor: psycopg.Cursor[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in cursor.fetchall()]


def _missed(cursor: psycopg.Cursor[dict[str, Any]]) -> int:
    """Return how many large values could not be marked: what a fork took over must not be unused once its first run is gone."""
    return sum(row["missed"] for row in cursor.fetchall())
