"""The scopes of runs on Postgres: join signals, lanes, and winding down aborted work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.values import ChildRunRow, ScopeRow
from flujo_worker.ports import FanOutPlace
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute
from flujo_worker.store.rows import child_run_of, scope_of
from flujo_worker.store.shared_rules import grace_s


class ScopesInPostgres(InPostgres):
    def scope(self, run: str, address: str) -> ScopeRow | None:
        rows = self._pool.rows("scope", {"run": run, "address": address})
        return scope_of(rows[0]) if rows else None

    def children(self, run: str, address: str) -> list[ScopeRow]:
        return [scope_of(row) for row in self._pool.rows("children", {"run": run, "address": address})]

    def signal_join(self, run: str, address: str, queue: str, by: str) -> bool:
        parameters = {"run": run, "address": address, "queue": queue, "by": by, "grace_s": grace_s(1)}
        made = self._pool.with_retry(lambda connection: _signal_join(connection, parameters))
        return made or bool(self._pool.rows("live_join", {"run": run, "address": address}))

    def child_run(self, run: str) -> ChildRunRow | None:
        rows = self._pool.rows("child_run", {"run": run})
        return child_run_of(rows[0]) if rows else None

    def aborted_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        return self._among("aborted_among", fan_outs)

    def closed_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        return self._among("closed_among", fan_outs)

    def wind_down_branches(self, run: str, fan_out: str) -> None:
        self._pool.with_retry(lambda connection: _wind_down(connection, {"run": run, "fan_out": fan_out}))

    def is_last_of_lane(self, run: str, branch: str, key: str) -> bool:
        return self.lane(run, branch) == (key, None)

    def missed_joins(self, limit: int, older_s: float) -> list[tuple[str, str]]:
        rows = self._pool.rows("missed_joins", {"limit": limit, "older_s": older_s})
        return [(row["run_id"], row["address"]) for row in rows]

    def aborted(self, limit: int) -> list[tuple[str, str]]:
        return [(row["run_id"], row["address"]) for row in self._pool.rows("aborted", {"limit": limit})]

    def idle_lanes(self, limit: int) -> list[tuple[str, str, int]]:
        rows = self._pool.rows("idle_lanes", {"limit": limit, "no_lane": NO_LANE})
        return [(row["run_id"], row["address"], row["lane"]) for row in rows]

    def give_lane(self, run: str, fan_out: str, lane: int) -> None:
        given = {"run": run, "fan_out": fan_out, "lane": lane, "addresses": [], "no_lane": NO_LANE, "grace_s": 0.0}
        self._pool.with_retry(lambda connection: _give_lane(connection, given))

    def orphaned_children(self, limit: int) -> list[str]:
        return [row["id"] for row in self._pool.rows("orphaned_children", {"limit": limit})]

    def stranded(self, limit: int) -> list[str]:
        return [row["id"] for row in self._pool.rows("stranded", {"limit": limit, "no_lane": NO_LANE})]

    def _among(self, statement: str, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        if not fan_outs:
            return set()
        runs, addresses = zip(*fan_outs, strict=True)
        rows = self._pool.rows(statement, {"runs": list(runs), "addresses": list(addresses)})
        return {(row["run_id"], row["address"]) for row in rows}

    def lane(self, run: str, branch: str) -> tuple[str | None, str | None]:
        """Return the attempt that closed a branch, and the first attempt of the sibling that got its lane."""
        rows = self._pool.rows("lane", {"run": run, "branch": branch})
        return (rows[0]["closed_by"], rows[0]["taken"]) if rows else (None, None)


def _signal_join(connection: Connection, parameters: Mapping[str, Any]) -> bool:
    """Make the join's row, and return whether it was made; one round trip to Postgres."""
    with connection.transaction(), connection.pipeline():
        execute(connection, "hold_fan_out", parameters)
        return execute(connection, "signal_join", parameters).fetchone() is not None


def _give_lane(connection: Connection, given: Mapping[str, Any]) -> None:
    """Give a lane that is still idle: another sweep may have given it meanwhile."""
    with connection.transaction():
        execute(connection, "hold_fan_out", {"run": given["run"], "address": given["fan_out"]})
        execute(connection, "leave_lane", given)


def _wind_down(connection: Connection, parameters: Mapping[str, Any]) -> None:
    """Close what waits in a fan-out if it is aborted here: a failover between the two may have lost the abort."""
    with connection.transaction():
        here = {"runs": [parameters["run"]], "addresses": [parameters["fan_out"]]}
        if execute(connection, "aborted_among", here).fetchone() is None:
            return
        execute(connection, "abort_attempts", parameters)
        held = [row["address"] for row in execute(connection, "hold_branches", parameters)]
        execute(connection, "abort_scopes", {**parameters, "held": held})
