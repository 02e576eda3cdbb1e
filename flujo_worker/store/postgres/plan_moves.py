"""Runs that continue under changed code: the port `PlanMoves` on Postgres. It decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CodeOnRecord
from flujo_client.serial import stored
from flujo_worker.store.postgres.make_entities import shown
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import CLIENT, execute
from flujo_worker.store.shared_rules import story_of

if TYPE_CHECKING:
    import psycopg

    from flujo_client.plan.plan import Plan
    from flujo_worker.domain.carry_on import PlanMove
    from flujo_worker.ports import MoveVerdict


class PlanMovesInPostgres(RetryingPool):
    """The port `PlanMoves`."""

    def run_state(self, run: str) -> RunState | None:
        return self._with_retry(lambda connection: _read(connection, run))

    def carry_on(self, reference: str, move: PlanMove) -> MoveVerdict:
        return self._with_retry(lambda connection: _carry_on(connection, reference, move))

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        self._do("adopt_plan", _bind_plan(reference, plan, worker))

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:
        self._do("note_plan", {"worker": worker, "fingerprint": fingerprint, "build": build})

    def has_able_worker(self, run: str, fingerprint: str | None, queue: str, *, but: str) -> bool:
        parameters = {"run": run, "fingerprint": fingerprint, "queue": queue, "but": but}
        return bool(self._rows("able_worker", parameters))

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        return bool(self._rows("other_build", {"run": run, "key": key, "queue": queue, "worker": worker}))

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        parameters = {"run": run, "fingerprint": fingerprint}

        def read(connection: psycopg.Connection[dict[str, Any]]) -> CodeOnRecord:
            return CodeOnRecord.of_rows(execute(connection, "code_on_record", parameters, home=CLIENT).fetchall())

        return self._with_retry(read)


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
        execute(connection, "adopt_plan", _bind_plan(reference, move.plan, move.worker))
        execute(connection, "carry_on", _bind(move))
    return "moved"


def _bind_plan(reference: str, plan: Plan, worker: str | None) -> dict[str, Any]:
    return {
        "fingerprint": plan.fingerprint,
        "reference": reference,
        "name": plan.name,
        "version": plan.version,
        "plan": stored(plan.to_tree(), path="plan"),
        "hooked": bool(plan.hooks),
        "worker": worker,
    }


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
