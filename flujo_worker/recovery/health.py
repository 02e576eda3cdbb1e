"""The scheduled health check: the command's report, made by a worker, stored, and logged.

It never touches a run. If it fails, the next beat repeats it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

import structlog

from flujo_client.config.manager import Settings
from flujo_client.config.models import Health
from flujo_client.health.aggregate import build
from flujo_client.health.facts import ArosFacts, Depths, HealthQuery, MachineFacts
from flujo_client.health.report import HealthReport
from flujo_client.transport.dead_letters import Refused
from flujo_worker.errors import DispatchError
from flujo_worker.store.postgres.health import HealthInPostgres


class Queues(Protocol):
    """The queries of a health check to the broker."""

    def depths(self, queues: Collection[str]) -> dict[str, int]:
        """Count the messages in queues; raises DispatchError."""

    def refused(self) -> Refused:
        """Count the messages that workers refused; raises DispatchError."""


class HealthCheck:
    def __init__(self, facts: HealthInPostgres, queues: Queues, settings: Settings) -> None:
        self._facts, self._queues, self._health = facts, queues, settings.health
        self._on_change = settings.runs.on_change
        self._own = {settings.worker.attempts_queue, settings.worker.control_queue}
        self._question = question_of(settings.health)

    def check(self) -> HealthReport | None:
        """Make this slot's report, store it and log it; None when it has one, or another worker is making it."""
        report = self._facts.report_once(
            self._question.aros_parameters(),
            self._question.machine_parameters(self._health, self._on_change),
            self._made,
            every_s=self._health.every_s,
            keep=self._health.keep,
        )
        if report is not None:
            log_report(report)
        return report

    def _made(self, aros: ArosFacts, machine: MachineFacts) -> HealthReport:
        return build(self._question, aros, machine, self._depths(machine), self._health)

    def _depths(self, machine: MachineFacts) -> Depths:
        try:
            messages = self._queues.depths(sorted(self._own | machine.queues.keys()))
            refused = self._queues.refused()
            return Depths.of(messages, refused.reasons, refused.last_at, now=time.time())
        except DispatchError as error:
            return Depths(error=error.message)


def question_of(health: Health) -> HealthQuery:
    """Make the query of the section `[health]`: it has the command's options under the same names."""
    return HealthQuery(
        since_hours=health.window_hours,
        limit=health.limit,
        pipeline=health.pipeline,
        step=health.step,
        model=health.model,
        buckets=health.trend_buckets,
    )


def log_report(report: HealthReport) -> None:
    """Log a line for each thing that is wrong, one for each threshold that was reached, and one for the report."""
    logger = structlog.get_logger()
    for reason in report.verdict.reasons:
        logger.warning("health.warn", code=reason.code, message=reason.message, named=list(reason.named))
    for advice in report.recommendations:
        logger.warning("health.threshold", **advice.model_dump())
    totals = report.totals
    logger.info(
        "health.checked",
        verdict=report.verdict.status,
        ended=report.outcomes.window.ended,
        failure_rate=report.outcomes.window.failure_rate,
        runs=totals.runs,
        coercions=totals.coercions,
        refused=totals.refused,
    )
