"""Failures in the worker's log and in Sentry, once they are committed: a warning for each failed attempt, an error for a failed run.

They are log lines and not events: the rows already have the facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_worker.observe.log import PLAIN_LOGGER, write_line
from flujo_worker.runtime.sentry import report_failure

if TYPE_CHECKING:
    from flujo_client.contract.outcome import Fault
    from flujo_worker.domain.values import Decision


def log_failures(decision: Decision) -> None:
    """Log the failures of a decision."""
    envelope, fault = decision.notice.envelope, decision.notice.outcome.fault
    if fault is None and decision.end is None:
        return
    report_failure(decision, logger=PLAIN_LOGGER)
    where = {"run": envelope.ticket.run, "pipeline": envelope.ticket.reference}
    step = {"scope": envelope.address, "step": envelope.step, "attempt": envelope.number}
    if decision.close.status == "failed" and fault is not None:
        write_line("attempt failed", "warning", **where, **step, **_shown(fault))
    if decision.end is not None and decision.end.status == "failed":
        end = decision.end
        shown = {"reason": end.reason} if end.fault is None else _shown(end.fault)
        write_line("run failed", "error", **where, **step, **shown)


def _shown(fault: Fault) -> dict[str, Any]:
    """Return a fault as log fields; structlog writes `exception` below the line, as it does with tracebacks."""
    shown = {"error": fault.type_name, "message": fault.message}
    return shown | ({"exception": fault.traceback} if fault.traceback else {})
