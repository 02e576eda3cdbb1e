"""Records of code on Postgres: plans, versions, and the former fields of context models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import psycopg

from flujo_client.contract.code import CodeOnRecord, CodeVersion
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_client.serial import stored, stored_safely
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import CLIENT, execute
from flujo_worker.store.rows import plan_of
from flujo_worker.store.shared_rules import MAX_FORKS


class CodeInPostgres(InPostgres):
    """The port `CodeStore`."""

    def plan(self, fingerprint: str) -> Plan | None:
        rows = self._pool.rows("plan", {"fingerprint": fingerprint})
        return plan_of(rows[0], fingerprint) if rows else None

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        parameters = {"model": model, "digest": digest, "fields": stored_safely(dict(fields))}
        return [orjson.loads(row["fields"]) for row in self._pool.rows("context_fields", parameters)]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        return frozenset(row["model"] for row in self._pool.rows("former_models", {"fingerprint": fingerprint}))

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        return [
            (row["fingerprint"], row["version"])
            for row in self._pool.rows("plans_of_run", {"run": run, "most": MAX_FORKS})
        ]

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

        def read(connection: psycopg.Connection[dict[str, Any]]) -> CodeOnRecord:
            return CodeOnRecord.of_rows(execute(connection, "code_on_record", parameters, home=CLIENT).fetchall())

        return self._pool.with_retry(read)


def bind_plan(reference: str, plan: Plan, worker: str | None) -> dict[str, Any]:
    """Return the parameters of `adopt_plan.sql`."""
    return {
        "fingerprint": plan.fingerprint,
        "reference": reference,
        "name": plan.name,
        "version": plan.version,
        "plan": stored(plan.to_tree(), path="plan"),
        "hooked": bool(plan.hooks),
        "worker": worker,
    }
