"""Steps with a concurrency limit, in the engine in one process (U-13); who runs beside whom is the stores' suite."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from flujo_client import Limit, Pipeline, Step
from flujo_client.errors import PipelineError
from flujo_client.pipeline.limited import limit_name
from flujo_worker.testing import LocalEngine


@pytest.fixture
def engine():
    with LocalEngine() as engine:
        yield engine


def limited(name, agent=str.upper, at_once=1):
    return Pipeline([Step("a", agent, limit=Limit(name, at_once))], name="limited")


def test_what_finds_no_place_waits_and_says_for_what(engine):
    """It is begun when the first one ends, in its first attempt, and the trace shows what it waited for."""
    second = []

    def hold(text):
        if not second:
            second.append(engine.enqueue(limited("crm", hold), "second"))
            assert engine.deliver(engine.bus.popleft()) == "waiting"
            assert not engine.bus
        return text

    first = engine.run(limited("crm", hold), "first")
    assert (first.output, engine.result(second[0]).output) == ("first", "second")
    assert [(row.number, row.status, row.fence) for row in engine.history(second[0])] == [(1, "succeeded", 2)]
    [told] = [event for event in engine.story(second[0]) if event.name == "flujo.limit.waiting"]
    assert told.data == {"step": "a", "limit": "crm", "at_once": 1, "in_use": 1}
    assert engine.now < 1_700_000_010  # it was published, and did not wait for its own time


def test_a_name_is_filled_in_from_input_context_and_tenant():
    limit = Limit("{{ tenant }}:{{ this.account }}:{{ context.region }}", 1)
    assert limit_name(limit, {"account": 7}, {"region": "eu"}, "acme") == "acme:7:eu"


def test_a_name_that_cannot_be_filled_in_fails_the_step(engine):
    result = engine.run(limited("crm:{{ this.account }}", lambda data: data), {"other": 1})
    assert (result.run_status, result.error.type_name) == ("failed", "TemplateResolutionError")
    assert "this.account" in result.error.message


def test_a_step_without_a_limit_asks_nothing(engine, monkeypatch):
    monkeypatch.setattr(engine.store, "request_permit", None)
    monkeypatch.setattr(engine.store, "release_permit", None)
    assert engine.run(Pipeline([Step("a", str.upper)]), "x").output == "X"


class Context(BaseModel):
    region: str = "eu"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crm:{{ tenat }}", "unknown name 'tenat'"),
        ("crm:{{ context.regoin }}", "limit 'regoin' is not a field of Context"),
        ("crm:{{ tenant", "limit: line 1"),
    ],
)
def test_a_template_that_cannot_be_right_is_refused_before_sending(engine, name, message):
    steps = limited(name).steps
    with pytest.raises(PipelineError, match=message):
        engine.enqueue(Pipeline(steps, context_model=Context), "x")


@pytest.mark.parametrize(("name", "at_once"), [("crm", 0), ("", 1), ("crm", 1.5), ("crm", True)])
def test_a_limit_that_means_nothing_is_refused_where_it_is_written(name, at_once):
    with pytest.raises(ValidationError):
        Limit(name, at_once)


def test_blueprints_have_limits(engine):
    text = 'version: "0.1"\nsteps:\n  - name: a\n    uses: builtins:len\n    limit: {name: "crm:{{ tenant }}", at_once: 3}\n'
    pipeline = Pipeline.from_yaml_text(text)
    assert pipeline.steps[0].limit == Limit("crm:{{ tenant }}", 3)
    assert Pipeline.from_yaml_text(pipeline.to_yaml()).steps[0].limit == Limit("crm:{{ tenant }}", 3)
