"""Operations of fan-outs and decisions on the store on Postgres: scopes, join signals, lanes, and winding down aborted work."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flujo_worker.errors import Unreadable
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import execute
from flujo_worker.store.rows import child_run_of, envelope_of, scope_of
from flujo_worker.store.shared_rules import grace_s

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import psycopg

    from flujo_client.contract.envelope import Envelope
    from flujo_worker.domain.values import ChildRunRow, ScopeRow
    from flujo_worker.ports import Damaged, FanOutPlace

logger = logging.getLogger(__name__)


class TreeInPostgres(RetryingPool):
    """The port `Tree`, and what the sweeper asks of it."""

    def scope(self, run: str, address: str) -> ScopeRow | None:
        rows = self._rows("scope", {"run": run, "address": address})
        return scope_of(rows[0]) if rows else None

    def children(self, run: str, address: str) -> list[ScopeRow]:
        return [scope_of(row) for row in self._rows("children", {"run": run, "address": address})]

    def envelopes(self, keys: Collection[str]) -> list[Envelope]:
        rows = self._rows("envelopes", {"keys": list(keys)}) if keys else []
        found = {envelope.key: envelope for _, envelope in read_envelopes(rows, _log)}
        return [found[key] for key in keys if key in found]

    def signal_join(self, run: str, address: str, queue: str, by: str) -> bool:
        parameters = {"run": run, "address": address, "queue": queue, "by": by, "grace_s": grace_s(1)}
        made = self._with_retry(lambda connection: _signal_join(connection, parameters))
        return made or bool(self._rows("live_join", {"run": run, "address": address}))

    def child_run(self, run: str) -> ChildRunRow | None:
        rows = self._rows("child_run", {"run": run})
        return child_run_of(rows[0]) if rows else None

    def aborted_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        if not fan_outs:
            return set()
        runs, addresses = zip(*fan_outs, strict=True)
        rows = self._rows("aborted_among", {"runs": list(runs), "addresses": list(addresses)})
        return {(row["run_id"], row["address"]) for row in rows}

    def wind_down_branches(self, run: str, fan_out: str) -> None:
        if self.aborted_among([(run, fan_out)]):
            self._with_retry(lambda connection: _wind_down(connection, {"run": run, "fan_out": fan_out}))

    def is_last_of_lane(self, run: str, branch: str, key: str) -> bool:
        return self._lane(run, branch) == (key, None)

    def missed_joins(self, limit: int, older_s: float) -> list[tuple[str, str]]:
        rows = self._rows("missed_joins", {"limit": limit, "older_s": older_s})
        return [(row["run_id"], row["address"]) for row in rows]

    def aborted(self, limit: int) -> list[tuple[str, str]]:
        return [(row["run_id"], row["address"]) for row in self._rows("aborted", {"limit": limit})]

    def orphaned_children(self, limit: int) -> list[str]:
        return [row["id"] for row in self._rows("orphaned_children", {"limit": limit})]

    def stranded(self, limit: int) -> list[str]:
        return [row["id"] for row in self._rows("stranded", {"limit": limit})]

    def _lane(self, run: str, branch: str) -> tuple[str | None, str | None]:
        """Return who closed a branch, and the first attempt of the sibling that got its lane."""
        rows = self._rows("lane", {"run": run, "branch": branch})
        return (rows[0]["closed_by"], rows[0]["taken"]) if rows else (None, None)


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


def _signal_join(connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]) -> bool:
    """Make the join's row, and return whether it was made; one round trip to Postgres."""
    with connection.transaction(), connection.pipeline():
        execute(connection, "hold_fan_out", parameters)
        return execute(connection, "signal_join", parameters).fetchone() is not None


def _wind_down(connection: psycopg.Connection[dict[str, Any]], parameters: Mapping[str, Any]) -> None:
    with connection.transaction():
        execute(connection, "abort_attempts", parameters)
        held = [row["address"] for row in execute(connection, "hold_branches", parameters)]
        execute(connection, "abort_scopes", {**parameters, "held": held})
