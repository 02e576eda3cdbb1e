"""Posts spans to a collector, by OTLP over HTTP, as the variables of OpenTelemetry say.

A message of protobuf is its parts, one behind the other. So attributes, most of which many spans have, are encoded once and kept: the library's own
encoder takes five times as long, which a fleet of short steps would feel.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import requests
from opentelemetry.context import attach, detach, set_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as WireResource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK,
    ResourceSpans,
    ScopeSpans,
    Status,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.re import parse_env_headers

from flujo_client.trace_context import span_id, trace_id
from flujo_worker.traces.conventions import CONTENT
from flujo_worker.traces.spans import Span

Answer: TypeAlias = Literal["taken", "refused", "away"]

MINE: Final = frozenset({400, 413, 415, 422, 431})
"""What a collector answers if it is what was sent that it does not take. Anything else may pass, be it after a change of its settings."""
_PATH, _TIMEOUT_S = "v1/traces", "10"
_COMPRESSIONS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.compress, "deflate": zlib.compress}
_FIRST, _SECOND = b"\x0a", b"\x12"
"""The tags of the fields 1 and 2 of a message, where they are messages."""
_GROUP, _MORE = 0x7F, 0x80
_SCOPE: Final[bytes] = ScopeSpans(scope=InstrumentationScope(name="flujo")).SerializeToString()


class Collector:
    """The collector that `OTEL_EXPORTER_OTLP_…` names, with its headers, certificates, compression and timeout."""

    def __init__(self, conventions: str, variables: Mapping[str, str]) -> None:
        def variable(name: str, default: str = "") -> str:
            """Return the variable for traces, or else the one for everything."""
            general = variables.get(f"OTEL_EXPORTER_OTLP_{name}", default)
            return variables.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", general).strip()

        named = Resource.create({"flujo.conventions": conventions})
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "flujo"}))
        self._resource = _encoded(named.attributes)
        general = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
        self._url = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{general}/{_PATH}")
        self._timeout_s = float(variable("TIMEOUT", _TIMEOUT_S))
        self._compress = _COMPRESSIONS.get(compression := variable("COMPRESSION").lower())
        self._session = requests.Session()
        encoding = {"Content-Encoding": compression} if self._compress else {}
        own = parse_env_headers(variable("HEADERS"), liberal=True)
        self._session.headers.update({"Content-Type": "application/x-protobuf", **encoding, **own})
        self._session.verify = variable("CERTIFICATE") or True
        if certificate := variable("CLIENT_CERTIFICATE"):
            key = variable("CLIENT_KEY")
            self._session.cert = (certificate, key) if key else certificate
        self.last_answer = "no answer"

    def send(self, spans: Sequence[Span]) -> tuple[Answer, int]:
        """Send spans; return whether they were taken, and how many of them the collector has refused."""
        body = _request(self._resource, spans)
        token = attach(set_value("suppress_instrumentation", True))  # noqa: FBT003 - or it would trace itself
        try:
            answer = self._session.post(
                self._url, self._compress(body) if self._compress else body, timeout=self._timeout_s
            )
        except OSError as error:  # also what requests raises
            self.last_answer = type(error).__name__
            return "away", 0
        finally:
            detach(token)
        self.last_answer = f"HTTP {answer.status_code}"
        if not answer.ok:
            return ("refused" if answer.status_code in MINE else "away"), 0
        if "protobuf" not in answer.headers.get("Content-Type", ""):
            return "taken", 0
        return "taken", ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans

    def close(self) -> None:
        self._session.close()


def _encoded(attributes: Mapping[str, Any]) -> bytes:
    encoded: bytes = ResourceSpans(resource=WireResource(attributes=_attributes(attributes))).SerializeToString()
    return encoded


def _request(resource: bytes, spans: Iterable[Span]) -> bytes:
    """Encode a request to export spans of a resource."""
    scope = b"".join((_SCOPE, *(_field(_SECOND, _span(span)) for span in spans)))
    return _field(_FIRST, resource + _field(_SECOND, scope))


def _field(tag: bytes, message: bytes) -> bytes:
    """Return a message as a field: its tag, its length in groups of seven bits, lowest first, and itself."""
    length, groups = len(message), bytearray()
    while length > _GROUP:
        groups.append(length & _GROUP | _MORE)
        length >>= 7
    groups.append(length)
    return tag + groups + message


def _span(span: Span) -> bytes:
    wire = WireSpan(
        trace_id=bytes.fromhex(trace_id(span.run, span.trace_parent)),
        span_id=bytes.fromhex(span_id(span.key)),
        name=span.name,
        kind=WireSpan.SPAN_KIND_CLIENT if span.is_call else WireSpan.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_ns(span.began),
        end_time_unix_nano=_ns(span.ended),
        flags=SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK,
    )
    if span.parent is not None:
        wire.parent_span_id = bytes.fromhex(span.parent)
    if span.error is not None:
        wire.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=span.error))
    for event in span.events:
        wire.events.add(name=event.name, time_unix_nano=_ns(event.at), attributes=_attributes(event.attributes))
    for link in span.links:
        trace, other = trace_id(link.run, link.trace_parent), span_id(link.key)
        relation = _attributes({"flujo.link": link.relation})
        wire.links.add(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(other), attributes=relation)
    encode = _kept if CONTENT.isdisjoint(span.attributes) else _fresh
    return b"".join((wire.SerializeToString(), *map(encode, span.attributes.keys(), span.attributes.values())))


def _fresh(name: str, value: Any) -> bytes:
    """Encode a span's attribute, as a part of the span."""
    encoded: bytes = WireSpan(attributes=_attributes({name: value})).SerializeToString()
    return encoded


_kept = lru_cache(maxsize=4096, typed=True)(_fresh)


def _attributes(values: Mapping[str, Any]) -> list[Any]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items()]


def _value(value: Any) -> Any:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case Sequence():
            return AnyValue(array_value=ArrayValue(values=[_value(each) for each in value]))
    return AnyValue(string_value=str(value))


def _ns(at: datetime) -> int:
    """Return nanoseconds since 1970, without a float between."""
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000
