"""The queries about plans and the runs that use them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CodeOnRecord
from flujo_client.contract.deployment import ParkedPlan
from flujo_client.errors import ClientError
from flujo_client.gateway.requests import Request, only
from flujo_client.pipeline.context_info import fields_digest, fields_of_model
from flujo_client.pipeline.pipeline import model_name
from flujo_client.plan.plan import Plan
from flujo_client.serial import stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from flujo_client.plan.plan import OnChange


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
        raise ClientError(
            f"{found} a fingerprint that begins with '{fingerprint:.70}'",
            code="UNKNOWN_FINGERPRINT",
            suggestion="`flujo lens show RUN --verbose` shows the fingerprint of a run, and `flujo runs diff RUN` the newest one of its pipeline",
        )
    return StoredPlan(rows[0]["reference"], Plan.from_tree(rows[0]["plan"]))


def record_context_fields(model: type[BaseModel]) -> Request[None]:
    """Record the fields of a context model in this process."""
    fields = fields_of_model(model)
    parameters = {"model": model_name(model), "digest": fields_digest(fields), "fields": stored(fields, path="fields")}
    return Request("record_context_fields", parameters, lambda _: None)
