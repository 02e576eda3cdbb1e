"""Records of code on Postgres, and runs that continue under changed code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CODE_CHANGED, AwaitedCode, CodeOnRecord, CodeVersion, ParkCause
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_client.serial import storable_text, stored, stored_safely
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.ports import ClaimId, MoveVerdict
from flujo_worker.store.postgres.entities import shown
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, Connection, execute
from flujo_worker.store.rows import plan_of
from flujo_worker.store.shared_rules import MAX_FORKS, story_of


class CodeInPostgres(InPostgres):
    def plan(self, fingerprint: str) -> Plan | None:
        rows = self._pool.rows("plan", {"fingerprint": fingerprint})
        return plan_of(rows[0], fingerprint) if rows else None

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        parameters = {"model": model, "digest": digest, "fields": stored_safely(dict(fields))}
        return [orjson.loads(row["fields"]) for row in self._pool.rows("context_fields", parameters)]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        return frozenset(row["model"] for row in self._pool.rows("former_models", {"fingerprint": fingerprint}))

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        rows = self._pool.rows("plans_of_run", {"run": run, "most": MAX_FORKS})
        return [(row["fingerprint"], row["version"]) for row in rows]

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        parts = [stored_safely(each.to_tree()) for each in versions]
        self._pool.do("store_code", {"digests": [each.digest for each in versions], "parts": parts})

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        versions = {each.digest: each for each in steps.values()}
        parameters = {
            "digests": list(versions),
            "parts": [stored_safely(each.to_tree()) for each in versions.values()],
            "texts": [stored_safely(dict(each.texts)) for each in versions.values()],
            "fingerprint": fingerprint,
            "paths": list(steps),
            "versions": [each.digest for each in steps.values()],
        }
        self._pool.do("store_code_of_steps", parameters)

    def versions(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        rows = self._pool.rows("code", {"digests": list(digests)})
        return {row["digest"]: CodeVersion.from_tree(orjson.loads(row["parts"])) for row in rows}

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        self._pool.do("adopt_plan", bind_plan(reference, plan, worker))

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:
        self._pool.do("note_plan", {"worker": worker, "fingerprint": fingerprint, "build": build})

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        parameters = {"run": run, "fingerprint": fingerprint}
        return CodeOnRecord.of_rows(self._pool.rows("code_on_record", parameters, home=CLIENT))


def bind_plan(reference: str, plan: Plan, worker: str | None) -> dict[str, Any]:
    """Return the parameters of `adopt_plan.sql`."""
    tree = stored(plan.to_tree(), path="plan")
    named = {"fingerprint": plan.fingerprint, "name": plan.name, "version": plan.version}
    return {**named, "reference": reference, "plan": tree, "hooked": bool(plan.hooks), "worker": worker}


class PlanMovesInPostgres(InPostgres):
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
        self, claim: ClaimId, reason: str, *, cause: ParkCause = CODE_CHANGED, code: AwaitedCode | None = None
    ) -> bool:
        awaited = None if code is None else stored_safely(code.to_tree())
        why = {"reason": storable_text(reason), "kind": cause.kind, "what": storable_text(cause.what or reason)}
        return bool(self._pool.do("park", {**claim._asdict(), **why, "parked_for": awaited}))

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        rows = self._pool.rows("parked", {"limit": limit, "but": list(but), "for_code": False})
        return [(row["id"], row["reference"], row["fingerprint"]) for row in rows]

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        rows = self._pool.rows("parked", {"limit": limit, "but": [], "for_code": True})
        codes = [AwaitedCode.from_tree(orjson.loads(row["parked_for"])) for row in rows]
        return [(row["id"], row["reference"], row["fingerprint"], each) for row, each in zip(rows, codes, strict=True)]

    def unpark(self, run: str, worker: str) -> bool:
        return bool(self._pool.do("unpark", {"run": run, "worker": worker}))


def _read(connection: Connection, run: str) -> RunState | None:
    row = execute(connection, "run_state", {"run": run}, home=CLIENT).fetchone()
    return None if row is None else RunState.of_row(run, row)


def _carry_on(connection: Connection, reference: str, move: PlanMove) -> MoveVerdict:
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
