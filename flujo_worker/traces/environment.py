"""Whether traces are exported, and which: as the standard variables of OpenTelemetry say, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from flujo_client.trace_context import caller_of, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

logger = logging.getLogger(__name__)

_PROTOCOLS = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
HTTP, EXPORTER = "http/protobuf", "opentelemetry-exporter-otlp-proto-http"


def may_export(variables: Mapping[str, str]) -> bool:
    """Return whether traces can be exported as these variables say; log an error if not: workers do their work without them."""
    name, protocol = next(((name, variables[name]) for name in _PROTOCOLS if name in variables), ("", HTTP))
    if protocol != HTTP:
        logger.error("traces are not exported: %s is %r, and only %r is supported", name, protocol, HTTP)
        return False
    try:
        version(EXPORTER)
    except PackageNotFoundError:
        logger.error(  # noqa: TRY400 - a traceback would say no more
            "traces are not exported: %s is not installed; pip install 'flujo-worker[otel]'", EXPORTER
        )
        return False
    return True


class Sampling:
    """Decides which traces are exported, by `OTEL_TRACES_SAMPLER`: of the same trace always the same."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider

        self._sampler: Sampler = TracerProvider(shutdown_on_exit=False).sampler

    def takes(self, run: str, trace_parent: str | None) -> bool:
        """Return whether the spans of a run are exported."""
        from opentelemetry.sdk.trace.sampling import Decision
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = {"traceparent": trace_parent} if trace_parent and caller_of(trace_parent) else {}
        context, number = TraceContextTextMapPropagator().extract(parent), int(trace_id(run, trace_parent), 16)
        return self._sampler.should_sample(context, number, "run").decision is Decision.RECORD_AND_SAMPLE
