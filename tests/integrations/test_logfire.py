"""What a collector sees of a project that uses Logfire: its live spans of agents hang below our attempt, in the run's trace, and none comes twice."""

from pathlib import Path

import pytest

from flujo_client.trace_context import span_id, trace_id
from tests.support.fleet import BRISK, wait_until
from tests.support.trace_collector import TraceCollector

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.services,
    pytest.mark.acceptance,
    pytest.mark.site(worker=BRISK, traces={"calls": "live"}),
]

LIVE = ["chat", "chat", "execute_tool", "invoke_agent"]


def test_its_live_spans_are_below_the_attempt_and_ours_are_not_doubled(site, monkeypatch):
    with TraceCollector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        site.workers(1, code=Path(__file__).parent)
        run = site.client.enqueue("logfire_shop:research", "bees")
        assert run.result(timeout=60).success, site.log()
        ours = [run.id, f"{run.id}:find", f"{run.id}::find:1"]
        wait_until(lambda: len(collector.spans) >= len(ours) + len(LIVE), what=site.log)  # Logfire sends in batches
    spans = {span.id: span for span in collector.spans if span.trace == trace_id(run.id, None)}
    assert len(spans) == len(collector.spans)
    live = [span for number, span in spans.items() if number not in map(span_id, ours)]
    calls = sorted(span.attributes.get("gen_ai.operation.name", "") for span in live)
    assert calls == LIVE, [span.name for span in live]
    [agent] = [span for span in live if span.attributes["gen_ai.operation.name"] == "invoke_agent"]
    assert agent.parent == span_id(ours[-1])
    assert {span.parent for span in live} - {agent.parent} <= {span.id for span in live}
