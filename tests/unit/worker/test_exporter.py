"""The exporter of traces over the memory store: what it sends, what it leaves out, and what it does when a clock or a collector misbehaves."""

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.config.manager import ConfigManager
from flujo_client.config.models import Traces
from flujo_client.trace_context import caller_of, own_trace_parent, span_id, trace_id
from flujo_worker.domain.ended import AttemptEvent
from flujo_worker.testing import LocalEngine
from flujo_worker.traces import exporter as exporting
from flujo_worker.traces.conventions import LATEST, OPT_IN, Conventions
from flujo_worker.traces.exporter import Exporter, exporter_of, may_export
from flujo_worker.traces.live import Sampling, follow
from flujo_worker.traces.spans import Spans
from tests.support.memory_exports import ExportsInMemory

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collected:
    """A collector in a list. `refuses`: names of spans that it does not take; `away`: how many batches it answers nothing."""

    last_answer = "HTTP 400"

    def __init__(self):
        self.spans, self.batches, self.refuses, self.away = [], 0, set(), 0

    def send(self, spans):
        self.batches += 1
        if self.away:
            self.away -= 1
            return "away", 0
        if any(span.name in self.refuses for span in spans):
            return "refused", 0
        self.spans += spans
        return "taken", 0

    def close(self):
        """Nothing is open."""


@pytest.fixture
def collected():
    return Collected()


@pytest.fixture
def export(engine, collected):
    """Return a function that exports what has ended in the engine."""

    takes = {"all": lambda run, trace_parent: True, "none": lambda run, trace_parent: False}
    made, exports = {}, ExportsInMemory(engine.stores.tables)

    def export(which="all"):
        if which not in made:
            spans = Spans(Conventions({}))
            made[which] = Exporter(exports, spans, takes[which], lambda: collected, lambda: "w1")
        engine.now += 5
        return made[which].export()

    export.exports = exports
    return export


def failing(data):
    raise ValueError("no")


def test_each_row_is_sent_once(engine, export, collected):
    run = engine.run(Pipeline([Step("a", lambda _: 1), Step("b", lambda _: 2)], name="two"), "go")
    assert export() > 0
    assert export() == 0
    assert sorted(span.name for span in collected.spans) == ["a", "attempt 1", "attempt 1", "b", "two"]
    by_key = {span.key: span for span in collected.spans}
    assert by_key[f"{run.run_id}::a:1"].parent == span_id(f"{run.run_id}:a")
    assert by_key[f"{run.run_id}:a"].parent == span_id(run.run_id)
    assert by_key[run.run_id].parent is None


def test_a_retry_is_linked_and_only_the_last_attempt_ends_the_step(engine, export, collected):
    config = StepConfig(max_retries=1)
    engine.run(Pipeline([Step("a", failing, config=config)]), "go")
    export()
    steps = [span for span in collected.spans if span.name == "a"]
    assert len(steps) == 1
    [second] = [span for span in collected.spans if span.name == "attempt 2"]
    assert [(link.key.rpartition(":")[2], link.relation) for link in second.links] == [("1", "retry_of")]
    assert (second.error[-4:], second.attributes["error.type"]) == (": no", "ValueError")


def test_what_is_refused_is_sent_in_parts_and_only_its_part_left_out(engine, export, collected):
    collected.refuses = {"b"}
    engine.run(Pipeline([Step(name, lambda _: 1) for name in "abcd"]), "go")
    export()
    names = [span.name for span in collected.spans]
    assert "b" not in names
    assert {"a", "c", "d"} <= {*names}
    assert 0 < export.exports.refused_spans < 3
    assert export() == 0


def test_a_collector_that_is_away_delays_and_loses_nothing(engine, export, collected, caplog):
    caplog.set_level(logging.WARNING)
    engine.run(Pipeline([Step("a", lambda _: 1)]), "go")
    collected.away = 3
    for _ in range(3):
        export()
    assert collected.spans == []
    assert len([each for each in caplog.records if "is away" in each.message]) == 1
    export()
    assert len({span.key for span in collected.spans}) == len(collected.spans) == 3


def test_pages_of_any_size_hold_the_same(engine, export, collected, monkeypatch):
    monkeypatch.setattr(exporting, "PAGE", 2)
    runs = [engine.run(Pipeline([Step("a", lambda _: 1)]), "go") for _ in range(5)]
    export()
    keys = [span.key for span in collected.spans]
    assert len(keys) == len({*keys}) == 3 * len(runs)


def test_a_clock_that_is_set_back_loses_nothing(engine, export, collected):
    engine.run(Pipeline([Step("before", lambda _: 1)]), "go")
    export()
    engine.now -= 3600
    engine.run(Pipeline([Step("after", lambda _: 1)]), "go")
    export()
    assert "after" in {span.name for span in collected.spans}
    assert all(span.began <= span.ended for span in collected.spans)


def test_a_trace_that_is_not_sampled_is_left_out(engine, export, collected):
    engine.run(Pipeline([Step("a", lambda _: 1)]), "go")
    export("none")
    assert collected.spans == []


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"), [("always_off", "", False), ("traceidratio", "1.0", True)]
)
def test_the_standard_variable_chooses_the_sampler(monkeypatch, sampler, argument, expected):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    assert Sampling().takes("run_1", None) is expected


def test_all_runs_of_a_trace_are_sampled_alike():
    """A child run has its parent's context, whose flag is not a caller's decision."""
    sampling = Sampling()
    run = "run_1"
    assert caller_of(own_trace_parent(run)) is None
    assert trace_id("child", own_trace_parent(run)) == trace_id(run, None)
    assert sampling.takes(run, PARENT)
    assert not sampling.takes(run, f"{PARENT[:-2]}00")


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        (ENDPOINT, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
    ],
)
def test_the_standard_variables_turn_it_on_and_off(variables, is_on):
    assert bool(ConfigManager(environ=variables).opentelemetry()) is is_on


def test_a_protocol_that_is_not_supported_is_an_error_with_a_way_out(caplog):
    assert not may_export(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and only 'http/protobuf'" in caplog.text


def test_names_of_calls_are_of_two_versions():
    used = {"input_tokens": 7, "output_tokens": 3, "cost_usd": 0.5}
    ours, latest = Conventions({}), Conventions({OPT_IN: f"http, {LATEST}"})
    for each, has_system in ((ours, True), (latest, False)):
        name, attributes = each.model("openai:gpt-5", used)
        assert (name, attributes["gen_ai.usage.input_tokens"], attributes["operation.cost"]) == ("chat gpt-5", 7, 0.5)
        assert ("gen_ai.system" in attributes, attributes["gen_ai.provider.name"]) == (has_system, "openai")
        assert each.tool("send").name == "execute_tool send"
    assert latest.pipeline("audit") == {"gen_ai.operation.name": "invoke_workflow", "gen_ai.agent.name": "audit"}
    assert (ours.pipeline("audit"), ours.version, latest.version) == ({}, "pydantic-ai/5", "gen-ai/0.1.0")
    assert ours.operation("researcher__toolset__x.call_tool:send", None, {}).name == "execute_tool send"
    assert ours.operation("researcher__model.request", "openai:gpt-5", used).name == "chat gpt-5"


def test_content_is_sent_only_if_it_is_asked_for_and_without_secrets(ended_attempt):
    at = datetime.now(UTC)
    events = [
        AttemptEvent(at, "agent.prompt", {"prompt_preview": "my key is sk-proj-abcdefghijklmnopqrstuvwxyz012345"}),
        AttemptEvent(at + timedelta(seconds=1), "agent.response", {"response_preview": "fine"}),
        AttemptEvent(
            at + timedelta(seconds=1), "agent.usage", {"call": "agent", "input_tokens": 1, "output_tokens": 1}
        ),
    ]
    for content in (False, True):
        spans = [*Spans(Conventions({}), content=content).of(ended_attempt, events)]
        texts = json.dumps([span.attributes for span in spans])
        assert ("my key is" in texts, "fine" in texts, "sk-proj" in texts) == (content, content, False)
        assert len([span for span in spans if span.name.startswith("chat")]) == 1
        durable = [*Spans(Conventions({}), content=content).of(replace(ended_attempt, has_units=True), events)]
        [attempt] = [span for span in durable if span.name == "attempt 1"]
        assert ({"gen_ai.input.messages", "gen_ai.output.messages"} <= attempt.attributes.keys()) is content


@pytest.mark.parametrize(("value", "is_sent"), [("true", True), ("SPAN_ONLY", True), ("false", False), ("", False)])
def test_the_standard_variable_asks_for_content(engine, ended_attempt, value, is_sent):
    exporter = exporter_of(
        ExportsInMemory(engine.stores.tables), Traces(), ENDPOINT | {exporting.CONTENT: value}, lambda: "w1"
    )
    follow(None)
    events = [AttemptEvent(datetime.now(UTC), "agent.response", {"response_preview": "fine"})]
    texts = json.dumps([span.attributes for span in exporter._spans.of(ended_attempt, events)])
    assert ("fine" in texts) is is_sent


def test_calls_without_an_answer_and_replays_are_events_and_no_spans(ended_attempt):
    row = replace(ended_attempt, has_units=True, replayed=2, unknown=["shop__model.request"])
    spans = [*Spans(Conventions({})).of(row)]
    [attempt] = [span for span in spans if span.name == "attempt 1"]
    assert [(each.name, each.attributes) for each in attempt.events] == [
        ("flujo.calls.replayed", {"count": 2}),
        ("flujo.call.unknown", {"operation": "shop__model.request"}),
    ]
    assert [span.is_call for span in spans] == [False, False]


def test_calls_are_left_to_live_instrumentation(ended_attempt):
    events = [AttemptEvent(datetime.now(UTC), "agent.usage", {"call": "agent", "input_tokens": 1, "output_tokens": 1})]
    spans = [*Spans(Conventions({}), calls=False).of(ended_attempt, events)]
    assert [span.is_call for span in spans] == [False, False]


@pytest.fixture
def ended_attempt():
    with LocalEngine() as engine:
        exports = ExportsInMemory(engine.stores.tables)
        export = exports.begin("w1", patience_s=60.0, margin_s=0.0)
        engine.run(Pipeline([Step("a", lambda _: 1)]), "go")
        [row] = exports.ended("attempt", export.positions["attempt"], datetime.now(UTC) + timedelta(days=3650), 1)
        return row
