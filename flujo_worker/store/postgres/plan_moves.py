"""Runs that continue under changed code, on Postgres. It decides nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
import psycopg

from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CODE_CHANGED, AwaitedCode, ParkCause
from flujo_client.serial import stored_safely
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.ports import MoveVerdict
from flujo_worker.store.postgres.code import bind_plan
from flujo_worker.store.postgres.entities import as_text, shown
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, execute
from flujo_worker.store.shared_rules import story_of


class PlanMovesInPostgres(InPostgres):
    """The port `PlanMoveStore`."""

    def run_state(self, run: str) -> RunState | None:
        return self._pool.with_retry(lambda connection: _read(connection, run))

    def carry_on(self, reference: str, move: PlanMove) -> MoveVerdict:
        return self._pool.with_retry(lambda connection: _carry_on(connection, reference, move))

    def has_able_worker(self, run: str, fingerprint: str | None, queue: str, *, but: str) -> bool:
        parameters = {"run": run, "fingerprint": fingerprint, "queue": queue, "but": but}
        return bool(self._pool.rows("able_worker", parameters))

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        return bool(self._pool.rows("other_build", {"run": run, "key": key, "queue": queue, "worker": worker}))

    def park(
        self,
        key: str,
        fence: int,
        reason: str,
        *,
        cause: ParkCause = CODE_CHANGED,
        code: AwaitedCode | None = None,
        claim_id: str | None = None,
    ) -> bool:
        awaited = None if code is None else stored_safely(code.to_tree())
        parameters = {
            "key": key,
            "fence": fence,
            "claim_id": claim_id,
            "reason": as_text(reason),
            "kind": cause.kind,
            "what": as_text(cause.what or reason),
            "parked_for": awaited,
        }
        return bool(self._pool.do("park", parameters))

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        rows = self._pool.rows("parked", {"limit": limit, "but": list(but)})
        return [(row["id"], row["reference"], row["fingerprint"]) for row in rows]

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        return [
            (row["id"], row["reference"], row["fingerprint"], AwaitedCode.from_tree(orjson.loads(row["parked_for"])))
            for row in self._pool.rows("parked_for_code", {"limit": limit})
        ]

    def unpark(self, run: str, worker: str) -> bool:
        return bool(self._pool.do("unpark", {"run": run, "worker": worker}))


def _read(connection: psycopg.Connection[dict[str, Any]], run: str) -> RunState | None:
    row = execute(connection, "run_state", {"run": run}, home=CLIENT).fetchone()
    return None if row is None else RunState.of_row(run, row)


def _carry_on(connection: psycopg.Connection[dict[str, Any]], reference: str, move: PlanMove) -> MoveVerdict:
    run = move.state.run
    with connection.transaction():
        execute(connection, "hold_run_state", {"run": run})
        if _read(connection, run) != move.state:
            return "changed"
        if move.worker is not None:
            row = execute(connection, "is_older_code", {"run": run, "worker": move.worker}).fetchone()
            if row is None or row["is_older"]:
                return "older"
        execute(connection, "adopt_plan", bind_plan(reference, move.plan, move.worker))
        execute(connection, "carry_on", _bind(move))
    return "moved"


def _bind(move: PlanMove) -> dict[str, Any]:
    level, data = story_of(move)
    return {
        "run": move.state.run,
        "fingerprint": move.plan.fingerprint,
        "keys": [each.key for each in move.attempts],
        "new_keys": [str(each.new) for each in move.attempts],
        "steps": [each.new.step for each in move.attempts],
        "numbers": [each.new.number for each in move.attempts],
        "kinds": [each.new.kind for each in move.attempts],
        "queues": [each.queue for each in move.attempts],
        "anew": [each.begins_again for each in move.attempts],
        "level": level,
        "data": shown(data),
    }
