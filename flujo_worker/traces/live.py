"""Run users' code below the span of its attempt, although that is exported only once it has ended; and decide which traces are.

Whatever instruments HTTP clients or pydantic-ai then continues the run's trace. Off, it imports and does nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from flujo_client.trace_context import caller_of, span_id, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

    from flujo_client.attempt_info import AttemptInfo


class Sampling:
    """Decides which traces are exported, by `OTEL_TRACES_SAMPLER`: of the same trace always the same."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider

        self._sampler: Sampler = TracerProvider(shutdown_on_exit=False).sampler
        self.takes = lru_cache(maxsize=1024)(self._takes)
        """Whether a run's spans are exported, by its id and its trace context."""

    def _takes(self, run: str, trace_parent: str | None) -> bool:
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = {"traceparent": trace_parent} if trace_parent and caller_of(trace_parent) else {}
        context, number = TraceContextTextMapPropagator().extract(parent), int(trace_id(run, trace_parent), 16)
        return self._sampler.should_sample(context, number, "run").decision is Decision.RECORD_AND_SAMPLE


_sampling: Sampling | None = None


def follow(sampling: Sampling | None) -> None:
    """Set the current span of attempts from now on; None: no more."""
    global _sampling  # noqa: PLW0603 - the process has one
    _sampling = sampling


def enter(info: AttemptInfo | None) -> None:
    """Make the attempt's span the current one in this context."""
    if _sampling is None or info is None:
        return
    from opentelemetry import context, trace

    run, trace_parent = info.run_id, info.trace_parent
    flags = trace.TraceFlags(_sampling.takes(run, trace_parent))
    ids = int(trace_id(run, trace_parent), 16), int(span_id(info.key), 16)
    span = trace.NonRecordingSpan(trace.SpanContext(*ids, is_remote=True, trace_flags=flags))
    context.attach(trace.set_span_in_context(span))


def headers() -> dict[str, str]:
    """Return the headers that continue the attempt's trace in a service that a model is asked of."""
    if _sampling is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier
