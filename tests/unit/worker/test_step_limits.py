"""Steps with a concurrency limit, in the engine in one process (U-13); who runs beside whom is the stores' suite."""

from __future__ import annotations

import asyncio

import pytest
from agentic_parts import looped
from pydantic import BaseModel, ValidationError

from flujo_client import Limit, Pipeline, Step, StepConfig
from flujo_client.errors import PipelineError
from flujo_client.pipeline.limits import limit_name
from flujo_worker.agents import make_agent_async
from tests.support.priced_model import PricedModel


def limited(name, agent=str.upper, at_once=1, **options):
    return Pipeline([Step("a", agent, limit=Limit(name, at_once, **options))], name="limited")


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


class Asked(PricedModel):
    """A model that does something while it is asked."""

    def __init__(self, model, act):
        super().__init__(model)
        self.act = act

    async def answer(self, messages, info):
        await asyncio.to_thread(self.act)
        return await super().answer(messages, info)


def second_of_two(engine, limit, *, models=("openai:gpt-5.2",) * 2, names=("one", "one")):
    """Deliver the only attempt of a second run while that of the first one runs; return the result of that, and both runs."""
    delivered = []

    def enqueue(place, act):
        step = Step("a", make_agent_async(Asked(models[place], act)), limit=limit, config=StepConfig(max_retries=3))
        return engine.enqueue(Pipeline([step], name=names[place]), "x")

    def come():
        second = enqueue(1, lambda: None)
        delivered.extend([second, engine.deliver(engine.bus.popleft())])

    first = enqueue(0, come)
    engine.drain()
    return delivered[1], first, delivered[0]


@pytest.mark.parametrize(
    ("scope", "models", "names", "came"),
    [
        ("global", ("openai:gpt-5.2", "anthropic:claude-opus-4-5"), ("one", "other"), "waiting"),
        ("pipeline", ("openai:gpt-5.2", "anthropic:claude-opus-4-5"), ("one", "one"), "waiting"),
        ("pipeline", ("openai:gpt-5.2", "openai:gpt-5.2"), ("one", "other"), "merged"),
        ("run", ("openai:gpt-5.2", "openai:gpt-5.2"), ("one", "one"), "merged"),
        ("provider", ("openai:gpt-5.2", "openai:gpt-4.1"), ("one", "other"), "waiting"),
        ("provider", ("openai:gpt-5.2", "anthropic:claude-opus-4-5"), ("one", "one"), "merged"),
    ],
)
def test_a_limit_is_shared_by_those_in_its_scope(engine, scope, models, names, came):
    """U-13: while the first has the only place, the second one, under the same name, waits or runs."""
    found, *runs = second_of_two(engine, Limit("calls", 1, scope=scope), models=models, names=names)
    assert found == came
    assert [engine.result(run).run_status for run in runs] == ["succeeded"] * 2


def test_branches_of_a_run_share_its_limit(engine):
    step = Step("a", str.upper, limit=Limit("crm", 1, scope="run"))
    run = engine.run(Pipeline([Step.parallel("fan", {"x": step, "y": step})]), "in").run_id
    assert set(engine.stores.tables.limits) == {f"crm of {run}"}


def test_a_limit_for_each_provider_needs_a_model(engine):
    result = engine.run(limited("crm", scope="provider"), "x")
    assert (result.error.type_name, result.step_history[0].attempts) == ("NonRetryableError", 1)
    assert "the step's agent asks none that is known" in result.error.message


def test_what_is_dropped_fails_at_once_and_by_name(engine):
    """U-13: it is not tried again."""
    came, first, second = second_of_two(engine, Limit("crm", 1, on_full="drop"))
    failed = engine.result(second)
    assert (came, engine.result(first).run_status, failed.run_status) == ("merged", "succeeded", "failed")
    assert (failed.error.code, failed.step_history[0].attempts) == ("LIMIT_REACHED", 1)
    assert failed.error.details == {"step": failed.step_history[0].name}
    assert "the limit 'crm' is reached: 1 of 1 places are taken" in failed.error.message


def test_what_is_dropped_has_its_fallback(engine):
    """U-13: such as a cheaper way that needs no place."""
    outputs = []

    def hold(text):
        outputs.append(engine.run(limited_with_fallback(str.upper), "second").output)
        return text

    def limited_with_fallback(agent):
        step = Step("a", agent, limit=Limit("crm", 1, on_full="drop"), fallback_step=Step("b", lambda _: "instead"))
        return Pipeline([step])

    assert engine.run(limited_with_fallback(hold), "first").output == "first"
    assert outputs == ["instead"]


def test_the_oldest_run_is_cancelled_for_a_new_one(engine):
    """U-13: and that begins when it has ended."""
    came, first, second = second_of_two(engine, Limit("crm", 1, on_full="cancel_oldest"))
    assert came == "waiting"
    assert engine.stores.reads.read_run(first).reason == f"replaced by run {second} (limit 'crm')"
    assert [engine.result(run).run_status for run in (first, second)] == ["cancelled", "succeeded"]


def test_a_tool_of_an_agentic_loop_has_its_limit(engine):
    """U-13: each call of a tool there is a step, and waits as one."""
    tool = Step("crm", str.upper, limit=Limit("crm", 1))

    def plan(brief):
        if brief["turn"] == 2:
            return {"type": "finish", "final_answer": brief["command_log"][0]["result"]}
        return {"type": "run_agent", "agent_name": "crm", "input_data": "ada"}

    held = []

    def hold(text):
        held.append(engine.enqueue(looped(plan, {"crm": tool}), "goal"))
        while engine.bus:
            held.append(engine.deliver(engine.bus.popleft()))
        return text

    assert engine.run(limited("crm", hold), "first").output == "first"
    assert held[-1] == "waiting"
    assert engine.result(held[0]).output == "ADA"


def test_a_name_that_cannot_be_filled_in_fails_the_step(engine):
    result = engine.run(limited("crm:{{ this.account }}", lambda data: data), {"other": 1})
    assert (result.run_status, result.error.type_name) == ("failed", "TemplateResolutionError")
    assert "this.account" in result.error.message


def test_a_step_without_a_limit_asks_nothing(engine, monkeypatch):
    monkeypatch.setattr(engine.stores.limits, "request_permit", None)
    monkeypatch.setattr(engine.stores.limits, "release_permit", None)
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
    text = 'version: "0.1"\nsteps:\n  - name: a\n    uses: builtins:len\n    limit: {name: "crm:{{ tenant }}", at_once: 3WORDS}\n'
    for words, limit in (
        ("", Limit("crm:{{ tenant }}", 3)),
        (", scope: run, on_full: drop", Limit("crm:{{ tenant }}", 3, scope="run", on_full="drop")),
    ):
        pipeline = Pipeline.from_yaml_text(text.replace("WORDS", words))
        assert pipeline.steps[0].limit == limit
        assert Pipeline.from_yaml_text(pipeline.to_yaml()).steps[0].limit == limit
