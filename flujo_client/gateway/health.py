"""The queries of the health check. Their statements are in `flujo_client.health`, because workers use the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flujo_client.gateway.requests import Request
from flujo_client.health.facts import ArosFacts, HealthQuery, MachineFacts, read_aros, read_machine
from flujo_client.health.report import HealthReport

if TYPE_CHECKING:
    from flujo_client.config.models import Health
    from flujo_client.plan.plan import OnChange

HOME: Final = "flujo_client.health"
_BOUNDS: Final[Request[None]] = Request("bounds", HealthQuery.bounds(), lambda _: None, HOME)


def aros(question: HealthQuery) -> Request[ArosFacts]:
    """Count the interventions of AROS in the examined runs."""
    return Request("aros", question.aros_parameters(), lambda rows: read_aros(rows[0]), HOME, _BOUNDS)


def machine(question: HealthQuery, health: Health, on_change: OnChange = "carry_on") -> Request[MachineFacts]:
    """Read the state of workers, queues and limits in Postgres; `on_change` is the policy of plans that name none."""
    parameters = question.machine_parameters(health, on_change)
    return Request("machine", parameters, lambda rows: read_machine(rows[0]), HOME, _BOUNDS)


def last_report() -> Request[HealthReport | None]:
    """Read the report that the scheduled task stored last."""
    return Request("last_report", {}, lambda rows: HealthReport.model_validate(rows[0]["report"]) if rows else None)
