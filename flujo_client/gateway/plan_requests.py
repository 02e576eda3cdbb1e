"""The queries about plans, the runs that use them, and the runs that retry or fork others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from flujo_client.contract.admission import Gate
from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CodeOnRecord
from flujo_client.contract.deployment import ParkedPlan
from flujo_client.contract.envelope import RunHeader
from flujo_client.contract.rows import packed
from flujo_client.errors import ClientError
from flujo_client.gateway.requests import GRACE_S, Request, Row, bind_run, only, text_or_none
from flujo_client.pipeline.context_info import fields_digest, fields_of_model
from flujo_client.pipeline.fork import Beginning, NewFork, RetryableRun
from flujo_client.pipeline.pipeline import model_name
from flujo_client.plan.plan import OnChange, Plan
from flujo_client.serial import Packed, stored


class StoredPlan(NamedTuple):
    """A plan, and the reference of the pipeline that it is of."""

    reference: str
    plan: Plan


class RunOfPlan(NamedTuple):
    """A live run and the plan that it uses."""

    id: str
    reference: str
    fingerprint: str


def run_state(run_id: str) -> Request[RunState]:
    """Read a run's state; raises RunNotFound."""
    return Request("run_state", {"run": run_id}, lambda rows: RunState.of_row(run_id, only(rows, run_id)))


def code_on_record(run_id: str, fingerprint: str) -> Request[CodeOnRecord]:
    """Read the code that a run's steps were performed with, and the code that workers last had for its plan and for another."""
    return Request("code_on_record", {"run": run_id, "fingerprint": fingerprint}, CodeOnRecord.of_rows)


def plan(fingerprint: str) -> Request[StoredPlan]:
    """Read the plan whose fingerprint has this prefix; raises ClientError if there is none, or more than one."""
    return Request("plans", {"fingerprint": fingerprint}, lambda rows: _only_plan(rows, fingerprint))


def cohort(*, pipeline: str | None, status: str | None, limit: int) -> Request[list[RunOfPlan]]:
    """List live runs, oldest first: of a pipeline, by its name or reference, and of a status, if these are given."""
    parameters = {"pipeline": pipeline, "status": status, "limit": limit}
    return Request("cohort", parameters, lambda rows: [RunOfPlan(**row) for row in rows])


def parked_plans(on_change: OnChange) -> Request[list[ParkedPlan]]:
    """List the plans that parked runs use; `on_change` is the policy of those that name none."""
    return Request("parked_plans", {"on_change": on_change}, lambda rows: [ParkedPlan(**row) for row in rows])


def _only_plan(rows: Sequence[dict[str, Any]], fingerprint: str) -> StoredPlan:
    if len(rows) != 1:
        found = "several plans have" if rows else "no plan has"
        what = f"{found} a fingerprint that begins with '{fingerprint:.70}'"
        way_out = "`flujo lens show RUN --verbose` shows the fingerprint of a run, and `flujo runs diff RUN` the newest one of its pipeline"
        raise ClientError(what, code="UNKNOWN_FINGERPRINT", suggestion=way_out)
    return StoredPlan(rows[0]["reference"], Plan.from_tree(rows[0]["plan"]))


def record_context_fields(model: type[BaseModel]) -> Request[None]:
    """Record the fields of a context model in this process."""
    fields = fields_of_model(model)
    parameters = {"model": model_name(model), "digest": fields_digest(fields), "fields": stored(fields, path="fields")}
    return Request("record_context_fields", parameters, lambda _: None)


def retryable_run(run_id: str) -> Request[RetryableRun]:
    """Read a run that may be retried; raises RunNotFound."""
    return Request("retryable_run", {"run": run_id}, lambda rows: _retryable_run(only(rows, run_id)))


def beginning(run_id: str, place: int, before: Sequence[str]) -> Request[Beginning | None]:
    """Read the state that the top-level step at a place began with; None when it was not stored. `before` names the steps before it."""
    parameters = {"run": run_id, "place": place, "before": list(before)}
    return Request("beginning", parameters, lambda rows: _beginning(rows[0]) if rows else None)


def fork(new: NewFork, *, grace_s: float = GRACE_S) -> Request[str | None]:
    """Record a run that begins again at a step of another; None if its key is taken, or the other is gone, live, or was retried before."""
    parameters = {
        **bind_run(new, grace_s),
        **{name: getattr(new, name) for name in ("forked_from", "place", "keeps", "of_live", "again")},
        "taken": list(new.taken),
        "actor": text_or_none(new.actor),
    }
    return Request("fork", parameters, lambda rows: rows[0]["id"] if rows else None)


def _retryable_run(row: Row) -> RetryableRun:
    own = ("reference", "fingerprint", "queue", "priority", "trace_parent", "tenant")
    ticket = RunHeader(run=row["id"], **{name: row[name] for name in (*own, "aros", "settings", "limits")})
    rest = {name: row[name] for name in ("status", "cursor", "is_child", "metadata", "patience_s", "retried_as")}
    gates = tuple(Gate(**gate) for gate in row["gates"] or ())
    return RetryableRun(ticket, Plan.from_tree(row["plan"]), **rest, gates=gates)


def _beginning(row: Row) -> Beginning:
    return Beginning(Packed.from_bytes(row["input"]), packed(row["context"]))
