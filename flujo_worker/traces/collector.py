"""The only door to OpenTelemetry's SDK: makes its spans, and posts them to a collector."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import requests
from opentelemetry.context import attach, detach, set_value
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from flujo_client.trace_context import span_id, trace_id
from flujo_worker.traces.span import Span

Answer: TypeAlias = Literal["taken", "refused", "away"]

MINE: Final = frozenset({400, 413, 415, 422, 431})
"""What a collector answers if it is what was sent that it does not take. Anything else may pass, be it after a change of its settings."""
THREAD: Final = "flujo-traces"
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Collector:
    """Where `OTEL_EXPORTER_OTLP_…` says, with its headers, certificates, compression and timeout."""

    def __init__(self, conventions: str) -> None:
        named = {"flujo.conventions": conventions}
        resource = Resource.create(named)
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "flujo"}))
        self._resource, self._scope = resource, InstrumentationScope("flujo", schema_url="")
        self._session = _Session()
        self._exporter: Any = OTLPSpanExporter(session=self._session)
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(_is_not_ours)

    def send(self, spans: Sequence[Span]) -> tuple[Answer, int]:
        """Send spans; return whether they were taken, and how many of them the collector has refused."""
        self._session.status, self._session.rejected = None, 0
        token = attach(set_value("suppress_instrumentation", True))  # noqa: FBT003 - or it would trace itself
        try:
            result = self._exporter.export([self._readable(span) for span in spans])
        finally:
            detach(token)
        if result is SpanExportResult.SUCCESS:
            return "taken", self._session.rejected
        return ("refused" if self._session.status in MINE else "away"), 0

    @property
    def last_answer(self) -> str:
        """Return what the collector has answered last."""
        return "no answer" if self._session.status is None else f"HTTP {self._session.status}"

    def close(self) -> None:
        """Close the connections, and end waiting."""
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        trace = trace_id(span.run, span.trace_parent)
        return ReadableSpan(
            span.name,
            context=_context(trace, span_id(span.key)),
            parent=None if span.parent is None else _context(trace, span.parent),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(each.name, each.attributes, _ns(each.at)) for each in span.events],
            links=[
                Link(_context(trace_id(each.run, each.trace_parent), span_id(each.key)), {"flujo.link": each.relation})
                for each in span.links
            ],
            kind=SpanKind.CLIENT if span.is_call else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=_ns(span.began),
            end_time=_ns(span.ended),
            instrumentation_scope=self._scope,
        )


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Leave out what the library logs in our thread, an error for each try: `exporter.py` tells it once."""
    return record.threadName != THREAD


class _Session(requests.Session):
    """Remembers the last answer: the exporter says only whether it succeeded."""

    status: int | None = None
    rejected = 0

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        self.status, answer = None, super().send(request, **kwargs)
        self.status = answer.status_code
        if answer.ok and answer.content and "protobuf" in answer.headers.get("Content-Type", ""):
            self.rejected = ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans
        return answer


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=_SAMPLED)


def _ns(at: datetime) -> int:
    """Return nanoseconds since 1970, without a float between."""
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000
