"""A collector of OpenTelemetry on this machine, over HTTP with protobuf: whatever is exported to it is kept."""

import gzip
from collections import defaultdict
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flujo_client.trace_context import span_id, trace_id
from tests.support.fleet import wait_until
from tests.support.post_server import PostServer


class ReceivedLink(NamedTuple):
    """A link to another span."""

    trace: str
    span: str
    relation: str


class ReceivedSpan(NamedTuple):
    """A span as it came."""

    trace: str
    id: str
    parent: str
    name: str
    began: int
    ended: int
    is_error: bool
    attributes: dict
    events: list
    links: list
    resource: dict


class TraceCollector(PostServer):
    """Take spans.

    Attributes:
        spans: those that came, as often as they came, oldest first.
        refuses: the status for a batch, given its spans; None takes it.
        headers: of the last batch.
    """

    def __init__(self):
        super().__init__()
        self.spans, self.headers, self._by_run = [], {}, defaultdict(dict)
        self.refuses = lambda spans: None

    @property
    def environment(self):
        """Return the variables that make workers export to it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    def answer(self, headers, body):
        self.headers = dict(headers)
        body = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
        spans = list(_read(ExportTraceServiceRequest.FromString(body)))
        status = self.refuses(spans)
        if status is not None:
            return status, b""
        self.spans += spans
        for span in spans:
            self._by_run[span.attributes.get("flujo.run_id")][span.id] = span
        return 200, b""

    def of(self, run):
        """Return a run's spans by their ids, each once."""
        return dict(self._by_run[run])


def _read(request):
    for group in request.resource_spans:
        resource = _values(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    _values(span.attributes),
                    [(each.name, _values(each.attributes)) for each in span.events],
                    [
                        ReceivedLink(each.trace_id.hex(), each.span_id.hex(), _values(each.attributes)["flujo.link"])
                        for each in span.links
                    ],
                    resource,
                )


def _values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


_ROWS = """
SELECT span_id, parent_span_id, name, kind, ended_at FROM flujo_row_spans
WHERE run_id = %(run)s AND ended_at IS NOT NULL AND kind <> 'start'
"""


def assert_exported(site, collector, run):
    """Each ended row of a run has one span where the view has it; return the run's spans by their ids, with those of calls."""
    [kept] = site.rows("SELECT trace_parent FROM flujo_runs WHERE id = %(run)s", run=run)
    expected = {span_id(row["span_id"]): row for row in site.rows(_ROWS, run=run)}
    missing = lambda: [row for number, row in expected.items() if number not in collector.of(run)]  # noqa: E731
    wait_until(lambda: not missing(), 30, what=lambda: f"not exported: {missing()} {site.log()}")
    spans = collector.of(run)
    for number, row in expected.items():
        span = spans[number]
        if row["parent_span_id"] is not None:
            assert span.parent == span_id(row["parent_span_id"]), row
        assert (span.name, span.began <= span.ended) == (row["name"].replace("attempt", _word(row)), True), row
    assert {span.trace for span in spans.values()} == {trace_id(run, kept["trace_parent"])}
    calls = [span for number, span in spans.items() if number not in expected]
    assert [span for span in calls if "gen_ai.operation.name" not in span.attributes] == []
    assert [span for span in calls if span.parent not in spans] == []
    return spans


def _word(row):
    return "question" if ":resume" in row["span_id"] else "attempt"
