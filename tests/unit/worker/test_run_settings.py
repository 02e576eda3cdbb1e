"""The settings that a run was enqueued with count until its end, whatever those of the worker are by then (M-045, M-047)."""

import asyncio
from dataclasses import replace

import pytest

from flujo_client import ConditionalStep, Pipeline, PipelineContext, Step, StepConfig, UsageLimits
from flujo_client.api.step_options import options_of_attempts
from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.trace import build_trace
from flujo_client.plan.plan import Backoff
from flujo_worker.agents import make_agent_async
from flujo_worker.testing import LocalEngine
from tests.support.priced_model import PricedModel

WORKERS = {
    "retry": {"base_s": 7.0, "jitter": 0.0},
    "agents": {"agent_timeout_s": 9.0, "function_timeout_s": 9.0},
    "cost": {"default_output_tokens": 77},
}


def ran(pipeline, settings, value="in", **options):
    """A run of a client with these settings, on a worker that has others: its result, its events and what its attempts reserved."""
    with LocalEngine(Settings.model_validate(WORKERS)) as engine, pytest.MonkeyPatch.context() as client:
        client.setattr(RunSettings, "table", lambda _: settings)
        run = engine.enqueue(pipeline, value, **options)
        engine.drain()
        return engine.result(run), engine.story(run), engine.history(run)


def fails(_data):
    raise ValueError("no")


async def waits(_data):
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("settings", "waited"),
    [({"retry": {"base_s": 3.0, "jitter": 0.0}}, 3.0), ({"retry": {"jitter": 0.0}}, 1.0), (None, 7.0)],
    ids=["its own", "its client has the default", "a client that sends none"],
)
def test_how_long_its_steps_wait_to_be_tried_again(settings, waited):
    _, story, _ = ran(Pipeline([Step("a", fails, config=StepConfig(max_retries=1))]), settings)
    assert [each.data["delay_seconds"] for each in story if each.name == "flujo.retry"] == [waited]


def test_how_long_an_agent_may_take():
    result, _, _ = ran(
        Pipeline([Step("a", waits, config=StepConfig(max_retries=0))]), {"agents": {"agent_timeout_s": 0.05}}
    )
    assert "0.05" in result.error.message


def test_how_long_a_function_may_take():
    async def slow(*_):
        await asyncio.sleep(60)

    box = ConditionalStep("box", condition_callable=slow, branches={"x": Step("x", fails)})
    result, _, _ = ran(Pipeline([box]), {"agents": {"function_timeout_s": 0.05}})
    assert "0.05" in result.error.message


@pytest.mark.parametrize(("settings", "output"), [({"cost": {"default_output_tokens": 5}}, 5), ({}, 1000), (None, 77)])
def test_what_its_attempts_reserve(settings, output):
    pipeline = Pipeline([Step("a", make_agent_async(PricedModel()))])
    _, _, [attempt] = ran(pipeline, settings, limits=UsageLimits(total_tokens_limit=10**6))
    assert attempt.estimate_tokens == 2 + output


def test_whether_a_model_without_a_price_is_asked():
    pipeline = Pipeline([Step("a", make_agent_async(PricedModel("acme:own")))])
    assert ran(pipeline, {"cost": {"strict": True}})[0].error.code == "PRICING_NOT_CONFIGURED"
    assert ran(pipeline, {})[0].success


def test_how_its_templates_are_rendered():
    pipeline = Pipeline([Step("a", lambda data: data, input="{{ context.nothing }}")], context_model=PipelineContext)
    assert not ran(pipeline, {"template": {"undefined_variables": "strict"}})[0].success
    assert ran(pipeline, {})[0].success


def test_settings_of_breakers_from_older_clients_are_the_fleets_now():
    """ADR 36: they travelled with runs before."""
    own = RunSettings()
    assert settings_of({"breakers": {"failures": 1}, "retry": {"base_s": 3.0}}, own).retry.base_s == 3.0
    assert RunSettings.of(Settings.model_validate({"breakers": {"failures": 1}})).table() == {}


def test_what_depends_on_the_machine_stays_the_workers():
    """Folders and the patience with code that does not end are those of the process."""
    client = Settings.model_validate(
        {"template": {"folders": ["theirs"], "max_chars": 9}, "agents": {"cancel_grace_s": 1}}
    )
    own = RunSettings.of(Settings.model_validate({"template": {"folders": ["mine"]}}))
    table = RunSettings.of(client).table()
    assert table == {"template": {"max_chars": 9}}
    assert settings_of(table, own).template.folders == ("mine",)
    assert RunSettings.of(Settings()).table() == {}


def test_they_are_seen_in_its_trace():
    """M-047: what differs from the defaults, and `[aros]`."""
    settings = {"retry": {"base_s": 3.0}, "aros": {"coercion_tolerant_level": 1}}
    with LocalEngine(Settings.model_validate(settings)) as engine:
        result = engine.run(Pipeline([Step("a", lambda data: data)]), "in")
        run = engine.stores.reads.read_run(result.run_id)
        trace = build_trace(run, engine.history(run.id), engine.stores.reads.read_scopes(run.id), engine.story(run.id))
    assert trace.attributes["settings"]["retry"] == {"base_s": 3.0}
    assert trace.attributes["settings"]["aros"]["coercion_tolerant_level"] == 1


def test_the_resolved_options_of_each_attempt_are_seen_in_its_trace():
    """M-047: the step's own, over the project's when the run was enqueued, over what is built in."""
    own = StepConfig(max_retries=2, timeout_s=4, temperature=0.3, backoff=Backoff(base_s=7.0))
    steps = [
        Step("own", lambda data: data, config=own, processing={"aop": "full", "structured_output": "off"}),
        Step("projects", lambda data: data),
    ]
    settings = {"retry": {"base_s": 3.0}, "agents": {"agent_timeout_s": 9}, "aros": {"coercion_tolerant_level": 1}}
    with LocalEngine(Settings.model_validate(settings)) as engine:
        result = engine.run(Pipeline(steps), "in")
        run, rows = engine.stores.reads.read_run(result.run_id), engine.history(result.run_id)
        options = options_of_attempts(engine.stores.code.plan(run.fingerprint), run, rows)
        scopes, story = engine.stores.reads.read_scopes(run.id), engine.story(run.id)
        trace = build_trace(run, rows, scopes, story, options=options)
    first, second = (step.children[0].attributes["options"] for step in trace.children)
    assert (first["max_attempts"], first["timeout_s"], first["temperature"]) == (3, 4, 0.3)
    assert (first["backoff"]["base_s"], first["aros"]["aop"], first["aros"]["structured_output"]) == (
        7.0,
        "full",
        "off",
    )
    assert (second["max_attempts"], second["timeout_s"], second["backoff"]["base_s"]) == (2, 9, 3.0)
    assert (second["aros"]["aop"], second["aros"]["tolerant_level"]) == ("minimal", 1)
    assert first["aros"]["tolerant_level"] == 1


def test_options_that_only_newer_code_reads_are_left_out(engine):
    """M-047: a run of a newer client has a trace all the same."""
    result = engine.run(Pipeline([Step("a", lambda data: data)]), "in")
    run, rows = engine.stores.reads.read_run(result.run_id), engine.history(result.run_id)
    newer = replace(run, settings={"no_such_section": {"x": 1}})
    assert options_of_attempts(engine.stores.code.plan(run.fingerprint), newer, rows) == {}
