"""Report failures to Sentry, if the user's code has initialised it in this process.

Sentry's integration for Celery reports tasks that fail. A failed attempt is not worth an event, because another one may follow, and its
task raises what our tasks declare as expected. So the last failure of a step is reported here, once it is committed, as one event.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flujo_client.tracebacks import MACHINERY

if TYPE_CHECKING:
    from flujo_client.contract.outcome import Fault
    from flujo_worker.domain.values import Decision

_FAILURES = ("failure", "lost", "limit")


def is_initialized() -> bool:
    """Return whether `sentry_sdk.init` was called in this process."""
    asked = getattr(sys.modules.get("sentry_sdk"), "is_initialized", None)
    return asked is not None and bool(asked())


def report_failure(decision: Decision, *, logger: str) -> None:
    """Send a committed failure that no other attempt follows to Sentry, with the exception and what is known of the run.

    Args:
        decision: what was committed.
        logger: the name of the logger that has a record of the same failure, of which Sentry is to make no event.
    """
    if not is_initialized():
        return
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import capture_internal_exceptions

    ignore_logger(logger)
    fault, envelope = last_fault(decision), decision.notice.envelope
    if fault is None:
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
