"""Spans in OpenTelemetry's format for the wire, OTLP in protobuf.

A message of protobuf is its parts, one behind the other. So attributes, most of which many spans have, are encoded once and kept: the library's own
encoder takes five times as long, which a fleet of short steps would feel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK,
    ResourceSpans,
    ScopeSpans,
    Status,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from flujo_client.trace_context import span_id, trace_id
from flujo_worker.traces.conventions import CONTENT
from flujo_worker.traces.span import Span

_FIRST, _SECOND = b"\x0a", b"\x12"
"""The tags of the fields 1 and 2 of a message, where they are messages."""
_GROUP, _MORE = 0x7F, 0x80
_SCOPE: Final[bytes] = ScopeSpans(scope=InstrumentationScope(name="flujo")).SerializeToString()


def resource(attributes: Mapping[str, Any]) -> bytes:
    encoded: bytes = ResourceSpans(resource=Resource(attributes=_attributes(attributes))).SerializeToString()
    return encoded


def request(encoded_resource: bytes, spans: Iterable[Span]) -> bytes:
    """Encode a request to export spans of a resource."""
    scope = b"".join((_SCOPE, *(_field(_SECOND, _span(span)) for span in spans)))
    return _field(_FIRST, encoded_resource + _field(_SECOND, scope))


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
