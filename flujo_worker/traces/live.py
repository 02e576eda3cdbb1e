"""Run users' code below the span of its attempt, although that is exported only once it has ended.

Whatever instruments HTTP clients or pydantic-ai then continues the run's trace. Off, it imports and does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.trace_context import span_id, trace_id

if TYPE_CHECKING:
    from flujo_client.attempt_info import AttemptInfo
    from flujo_worker.traces.environment import Sampling

_sampling: Sampling | None = None


def follow(sampling: Sampling | None) -> None:
    """Set the current span of attempts from now on; None: no more."""
    global _sampling  # noqa: PLW0603 - the process has one
    _sampling = sampling


def enter(info: AttemptInfo) -> None:
    """Make the attempt's span the current one in this context."""
    if _sampling is None:
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    run, trace_parent = info.run_id, info.trace_parent
    parent = f"00-{trace_id(run, trace_parent)}-{span_id(info.key)}-{_sampling.takes(run, trace_parent):02x}"
    context.attach(TraceContextTextMapPropagator().extract({"traceparent": parent}, context.get_current()))


def headers() -> dict[str, str]:
    """Return the headers that continue the attempt's trace in a service that a model is asked of."""
    if _sampling is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
