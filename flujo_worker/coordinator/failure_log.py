"""Failures in the worker's log and in Sentry, once they are committed: a warning for each failed attempt, an error for a failed run.

They are log lines and not events: the rows already have the facts. Sentry gets an event if the user's code has initialised it here.
Its integration for Celery reports tasks that fail. A failed attempt is not worth an event, because another one may follow, and its task raises
an error that our tasks declare as expected. So the last failure of a step is reported here, as one event.
"""

from __future__ import annotations

from typing import Any

from flujo_client.contract.outcome import Fault
from flujo_client.tracebacks import MACHINERY
from flujo_worker.domain.values import Decision
from flujo_worker.observe.log import PLAIN_LOGGER, fields_of, write_line
from flujo_worker.runtime.faults import has_sentry

_FAILURES = ("failure", "lost", "limit")


def _report(decision: Decision) -> None:
    """Send a committed failure that no other attempt follows to Sentry, with the exception and what is known of the run."""
    if not has_sentry():
        return
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import capture_internal_exceptions

    ignore_logger(PLAIN_LOGGER)  # it has a record of the same failure
    fault, envelope = last_fault(decision), decision.notice.envelope
    if fault is None:
        return
    if getattr(fault.raised, "is_in_sentry", False):  # of a Celery task, whose integration has reported it
        return
    tags = {"pipeline": envelope.ticket.reference, "step": envelope.step, "run": envelope.ticket.run}
    with capture_internal_exceptions(), sentry_sdk.new_scope() as scope:
        for name, value in tags.items():
            scope.set_tag(f"flujo_{name}", value)
        scope.set_context("flujo", {**tags, "scope": envelope.address, "attempt": envelope.number})
        event, hint = _event(fault)
        sentry_sdk.capture_event(event, hint=hint)


def last_fault(decision: Decision) -> Fault | None:
    """Return why a step, or the user's code between steps, has failed for good; None for everything else that is decided."""
    envelope, outcome, end = decision.notice.envelope, decision.notice.outcome, decision.end
    if outcome.kind in _FAILURES and decision.close.status == "failed":
        place = envelope.address, envelope.step
        return None if any((each.address, each.step) == place for each in decision.next) else outcome.fault
    if end is not None and end.status == "failed" and end.fault is not None and end.fault.raised is not None:
        return end.fault  # raised by a condition or a mapper; the failure of a branch was reported where it was raised
    return None


def _event(fault: Fault) -> tuple[Any, Any]:
    import sentry_sdk
    from sentry_sdk.utils import event_from_exception

    if fault.raised is None:  # of another process: its worker died, or its lease ran out
        error = {"type": fault.type_name, "module": fault.module, "value": fault.message}
        return {"level": "error", "exception": {"values": [error]}}, None
    options, mechanism = sentry_sdk.get_client().options, {"type": "flujo", "handled": False}
    made, hint = event_from_exception(fault.raised, client_options=options, mechanism=mechanism)
    event: Any = made
    for error in event["exception"]["values"]:
        for frame in (error.get("stacktrace") or {}).get("frames", ()):
            if str(frame.get("module")).partition(".")[0] in MACHINERY:
                frame["in_app"] = False
                frame.pop("vars", None)  # settings, and values of other steps
    return event, hint


def log_failures(decision: Decision) -> None:
    envelope, fault = decision.notice.envelope, decision.notice.outcome.fault
    if fault is None and decision.end is None:
        return
    _report(decision)
    where = {"pipeline": envelope.ticket.reference, **fields_of(envelope)}
    if decision.close.status == "failed" and fault is not None:
        write_line("attempt failed", "warning", **where, **_shown(fault))
    if decision.end is not None and decision.end.status == "failed":
        end = decision.end
        shown = {"reason": end.reason} if end.fault is None else _shown(end.fault)
        write_line("run failed", "error", **where, **shown)


def _shown(fault: Fault) -> dict[str, Any]:
    """Return a fault as log fields; structlog writes `exception` below the line, as it does with tracebacks."""
    shown = {"error": fault.type_name, "message": fault.message}
    return shown | ({"exception": fault.traceback} if fault.traceback else {})
