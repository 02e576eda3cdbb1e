"""What a collector receives: spans in OpenTelemetry's own format, as its variables say; the library's classes read it."""

from datetime import UTC, datetime, timedelta

import pytest

from flujo_client.trace_context import span_id, trace_id
from flujo_worker.traces.collector import Collector
from flujo_worker.traces.spans import Span, SpanEvent, SpanLink
from tests.support.trace_collector import ReceivedLink, TraceCollector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BEGAN = datetime(2026, 11, 29, 3, 0, 0, 123_456, UTC)
ATTRIBUTES = {
    "yes": True,
    "one": 1,
    "half": 0.5,
    "text": "a",
    "long": "ü" * 1000,
    "number": 1.0,
    "none": 0,
    "is": False,
}


def span(name, **rest):
    values = {"run": "r1", "trace_parent": None, "key": f"r1:{name}", "parent": None, "attributes": {}}
    return Span(**values | {"name": name, "began": BEGAN, "ended": BEGAN + timedelta(seconds=1)} | rest)


@pytest.fixture
def server():
    with TraceCollector() as server:
        yield server


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_spans_arrive_as_they_are(server, compression):
    variables = server.environment | {"OTEL_EXPORTER_OTLP_COMPRESSION": compression}
    sent = [
        span("a", attributes=ATTRIBUTES),
        span("b", parent=span_id("r1:a"), trace_parent=PARENT, error="no", is_call=True, links=[SpanLink("r2", None, "k", "retry_of")]),
        *(span(f"many{n}", events=[SpanEvent(BEGAN, "e", {"n": n})]) for n in range(300)),
    ]  # fmt: skip
    assert Collector("c/1", variables).send(sent) == ("taken", 0)
    first, second, *many = server.spans
    assert (first.attributes, first.trace, first.id, first.parent) == (
        ATTRIBUTES,
        trace_id("r1", None),
        span_id("r1:a"),
        "",
    )
    assert {name: type(value) for name, value in first.attributes.items()} == {
        n: type(v) for n, v in ATTRIBUTES.items()
    }
    assert (first.began, first.ended - first.began, first.is_error) == (1_795_921_200_123_456_000, 1_000_000_000, False)
    assert (second.trace, second.parent, second.is_error) == (PARENT[3:35], span_id("r1:a"), True)
    assert second.links == [ReceivedLink(trace_id("r2", None), span_id("k"), "retry_of")]
    assert [each.events for each in many] == [[("e", {"n": n})] for n in range(300)]
    assert {(each.resource["flujo.conventions"], each.resource["service.name"]) for each in server.spans} == {
        ("c/1", "flujo")
    }


def test_variables_for_traces_win_over_those_for_everything(server):
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{server.port}/other",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20eA==",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
    }
    assert Collector("c/1", own).send([span("a")])[0] == "taken"
    assert server.headers["authorization"] == "Basic eA=="


@pytest.mark.parametrize(
    ("status", "answer"), [(200, "taken"), (400, "refused"), (413, "refused"), (401, "away"), (503, "away")]
)
def test_an_answer_says_whether_to_try_again(server, status, answer):
    server.refuses = lambda spans: status
    collector = Collector("c/1", server.environment)
    assert collector.send([span("a")]) == (answer, 0)
    assert collector.last_answer == f"HTTP {status}"


def test_without_a_collector_all_wait():
    collector = Collector("c/1", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert collector.send([span("a")]) == ("away", 0)
    assert collector.last_answer == "ConnectionError"
