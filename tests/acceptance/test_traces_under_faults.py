"""Traces under faults: one span for each row, none lost and none doubled, however workers, Postgres and the collector fail."""

import random
import signal
import time

import pytest
from opentelemetry import trace

from flujo_client.trace_context import span_id
from tests.support.fleet import BRISK, Site, one_process, wait_until
from tests.support.trace_collector import TraceCollector, assert_exported

pytestmark = [pytest.mark.acceptance, one_process]

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLS = 12 + 6 * 5 + 5


@pytest.fixture
def collector(monkeypatch):
    with TraceCollector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest.fixture
def site(services_to_break, tmp_path, collector):
    with Site(services_to_break, tmp_path, worker=BRISK | {"max_lost": 20}) as site:
        yield site


def ended(site, fleet, *runs):
    """Wait until the runs have ended; workers that were killed are replaced."""
    wait_until(
        lambda: fleet.replace_dead() * 0 or all(run.status() not in ("queued", "running") for run in runs),
        what=site.log,
    )


@pytest.mark.large
def test_nothing_is_lost_or_doubled_while_everything_fails(site, collector, services_to_break):
    """Workers are killed, the one that exports among them; Postgres is restarted; and the collector is away for a while."""
    fleet, drawn = site.workers(2), random.Random(7)
    runs = [site.client.enqueue("durable_pipelines:research", f"kill:model:{n}:unit_answered") for n in (3, 5)]
    runs += [site.client.enqueue("background_pipelines:dear", []) for _ in range(4)]
    collector.refuses = lambda spans: 503
    ended(site, fleet, *runs[:1])
    services_to_break.restart_postgres("immediate")
    ended(site, fleet, *runs)
    collector.refuses = lambda spans: 503 if drawn.random() < 0.3 else None
    for _ in range(3):
        exporting = site.rows("SELECT w.pid FROM flujo_exports e JOIN flujo_workers w ON w.id = e.worker")
        for pid in {row["pid"] for row in exporting} & fleet.pids:
            next(each for each in fleet.processes if each.pid == pid).send_signal(signal.SIGKILL)
        wait_until(lambda: fleet.replace_dead() * 0 or len(fleet.pids) == 2, what=site.log)
        time.sleep(0.3)  # while it exports, or before, or after
    collector.refuses = lambda spans: None
    everything = [row["id"] for row in site.rows("SELECT id FROM flujo_runs")]
    assert len(everything) == len(runs) + 4  # each of the four began one in the background
    wait_until(lambda: not site.rows("SELECT FROM flujo_runs WHERE ended_at IS NULL"), what=site.log)
    for run in everything:
        assert_exported(site, collector, run)
    for run in runs[:2]:
        spans = collector.of(run.id).values()
        units = site.rows("SELECT operation FROM flujo_units WHERE run_id = %(run)s", run=run.id)
        assert len(units) == CALLS
        assert sum("flujo.operation" in span.attributes for span in spans) == CALLS
        chats = [span.attributes for span in spans if span.attributes.get("gen_ai.operation.name") == "chat"]
        assert sum(each["gen_ai.usage.input_tokens"] for each in chats) == sum(range(101, 113))
        attempt = next(span for span in spans if span.name == "attempt 1")
        assert ("flujo.calls.replayed" in dict(attempt.events), attempt.attributes["flujo.deliveries"] > 1) == (
            True,
            True,
        )


def test_a_batch_that_is_refused_is_left_out_and_the_rest_goes_on(site, collector):
    """Only the part that the collector does not take, and that is counted. What it takes is visible in ten seconds."""
    site.workers(1)
    first = site.client.enqueue("background_pipelines:dear", [])
    collector.refuses = lambda spans: 400 if any(span.id == span_id(first.id) for span in spans) else None
    first.result(timeout=60)
    refused = "SELECT refused FROM flujo_exports WHERE refused > 0"
    wait_until(lambda: site.rows(refused), 60, what=site.log)
    caller = trace.SpanContext(
        int(PARENT[3:35], 16), int(PARENT[36:52], 16), is_remote=False, trace_flags=trace.TraceFlags(1)
    )
    with trace.use_span(trace.NonRecordingSpan(caller)):
        second = site.client.enqueue("background_pipelines:dear", [])
    second.result(timeout=60)
    began = time.monotonic()
    spans = assert_exported(site, collector, second.id)
    assert time.monotonic() - began < 10
    assert (spans[span_id(second.id)].parent, spans[span_id(second.id)].trace) == (PARENT[36:52], PARENT[3:35])
    assert span_id(first.id) not in collector.of(first.id)
    assert span_id(f"{first.id}::first:1") in collector.of(first.id)
