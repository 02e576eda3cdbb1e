"""Circuit breakers over whole runs in one process: what counts, who waits, and that a wait is not an attempt (M-463, C-44)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from pydantic_ai import exceptions as ai
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import AgentProcessors, Pipeline, PluginOutcome, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_client.errors import PausedException
from flujo_worker.agents import AgentTool, make_agent_async
from flujo_worker.testing import LocalEngine
from tests.support.memory import asked

QUICK = {"failures": 3, "recovery_s": 30.0, "half_open_calls": 1}
ONCE, OFTEN = StepConfig(max_retries=0), StepConfig(max_retries=9)
DOWN = ai.ModelHTTPError(503, "large")
pytestmark = pytest.mark.engine(breakers=QUICK, retry={"base_s": 0.1, "jitter": 0})


class Provider:
    """A model that fails with these errors, one after another, and then answers."""

    def __init__(self, *errors, name="large"):
        self.errors, self.calls = list(errors), 0
        self.model = FunctionModel(self.answer, model_name=name)

    def answer(self, messages, info):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ModelResponse([TextPart("well")])

    def step(self, name="talk", config=OFTEN, **rest):
        return Step(name, make_agent_async(self.model), config=config, **rest)


def breaker_events(engine, run_id, prefix="flujo.breaker."):
    return [event for event in engine.story(run_id) if event.name.startswith(prefix)]


def names(engine, run_id):
    return [event.name.removeprefix("flujo.breaker.") for event in breaker_events(engine, run_id)]


def test_after_the_threshold_no_one_calls_until_the_recovery_is_over(engine):
    """M-463: three failures, then a wait without a call, then a probe."""
    provider, began = Provider(DOWN, DOWN, DOWN), engine.now
    result = engine.run(Pipeline([provider.step()]), "hello")
    assert (result.output, provider.calls) == ("well", 4)
    assert names(engine, result.run_id) == ["opened", "waiting", "half_open", "closed"]
    assert engine.now - began >= 30


def test_a_wait_consumes_no_number(engine):
    """C-02, M-013: calls made are attempts, waits are none."""
    provider = Provider(DOWN, DOWN, DOWN)
    result = engine.run(Pipeline([provider.step()]), "hello")
    history = engine.history(result.run_id)
    assert [(each.number, each.status) for each in history] == [
        (1, "failed"),
        (2, "failed"),
        (3, "failed"),
        (4, "succeeded"),
    ]
    assert history[-1].fence == 2
    assert result.step_history[0].attempts == 4


def test_other_runs_wait_too_and_their_only_attempt_is_left_to_them(engine):
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")
    other = Provider()
    result = engine.run(Pipeline([other.step(config=ONCE)]), "hello")
    assert (result.output, other.calls) == ("well", 1)
    assert names(engine, result.run_id) == ["waiting", "half_open", "closed"]


def test_its_events_say_what_and_why(engine):
    result = engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step()]), "hello")
    by_name = {event.name: event for event in breaker_events(engine, result.run_id)}
    model = "function:large"
    opened = {"model": model, "calls": 3, "failed": 3, "slow": 0, "recovery_s": 30.0}
    assert by_name["flujo.breaker.opened"].data == opened
    waiting = by_name["flujo.breaker.waiting"]
    assert (waiting.data["step"], waiting.data["model"], waiting.level) == ("talk", model, "warning")
    assert 29 <= waiting.data["delay_seconds"] <= 45
    assert by_name["flujo.breaker.closed"].data == {"model": model, "probes": 1}


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ai.ModelHTTPError(500, "m"), True),
        (ai.ModelHTTPError(429, "m"), False),
        (ai.ModelHTTPError(529, "m"), False),
        (ai.ModelHTTPError(408, "m"), True),
        (getattr(ai, "ModelConnectionError", ai.ModelAPIError)("m", "refused"), True),
        (ai.ModelAPIError("m", "gone"), True),
        (ai.ModelHTTPError(400, "m"), False),
        (ai.ModelHTTPError(401, "m"), False),
        (ai.ModelHTTPError(404, "m"), False),
        (ai.UnexpectedModelBehavior("nonsense"), False),
        (ConnectionError("a tool's own"), False),
        (TimeoutError("a tool's own"), False),
        (ValueError("a bug"), False),
    ],
    ids=lambda given: f"{type(given).__name__}-{given}"[:40] if isinstance(given, Exception) else "",
)
def test_what_counts_is_the_providers_failure_and_no_other(engine, error, counts):
    """M-463: never what it was asked, what it answered, or who asked."""
    result = engine.run(Pipeline([Provider(error, error, error).step()]), "hello")
    assert ("opened" in names(engine, result.run_id)) is counts


def test_an_answer_that_does_not_fit_is_no_failure_of_the_model(engine):
    """C-02: it is tried again, and the breaker stays closed."""
    agent = make_agent_async(Provider().model, output_type=int)
    result = engine.run(Pipeline([Step("count", agent, config=StepConfig(max_retries=5))]), "hello")
    assert (result.success, names(engine, result.run_id)) == (False, [])


def test_no_answer_within_the_attempts_time_counts(engine):
    async def hang(messages, info):
        await asyncio.sleep(30)

    agent = make_agent_async(FunctionModel(hang, model_name="slow"))
    step = Step("talk", agent, config=StepConfig(max_retries=2, timeout_s=0.2))
    result = engine.run(Pipeline([step]), "hello")
    assert names(engine, result.run_id) == ["opened"]


def test_slow_calls_open_it_where_the_project_says_so():
    """C-44."""

    async def think(messages, info):
        await asyncio.sleep(0.02)
        return ModelResponse([TextPart("hm")])

    step = Step("talk", make_agent_async(FunctionModel(think, model_name="slow")), config=ONCE)
    for slow_rate, expected in ((None, []), (1.0, ["opened"])):
        breakers = QUICK | {"slow_s": 0.01, "slow_rate": slow_rate, "least_calls": 1}
        with LocalEngine(Settings.model_validate({"breakers": breakers})) as engine:
            result = engine.run(Pipeline([step]), "hello")
            assert (result.output, names(engine, result.run_id)) == ("hm", expected)


@pytest.mark.parametrize("asked", [7.0, 300.0])
def test_the_provider_may_ask_for_a_longer_or_a_shorter_wait(engine, asked):
    """C-48: 503 with Retry-After: no probe before that, and one soon after."""
    busy = ai.ModelHTTPError(503, "m", headers={"Retry-After": str(asked)})
    result = engine.run(Pipeline([Provider(DOWN, DOWN, busy).step(config=StepConfig(max_retries=2))]), "hello")
    opened, began = breaker_events(engine, result.run_id)[0], engine.now
    engine.run(Pipeline([Provider().step()]), "hello")
    assert opened.data["recovery_s"] == asked
    assert asked <= engine.now - began <= asked + 15


def test_models_have_breakers_of_their_own(engine):
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")
    result = engine.run(Pipeline([Provider(name="small").step(), Step("plain", str.upper)]), "hello")
    assert (result.output, names(engine, result.run_id)) == ("WELL", [])


def test_agents_without_a_model_have_none(engine):
    def refused(data):
        raise ConnectionRefusedError("the shop's own service")

    result = engine.run(Pipeline([Step("ask", refused, config=StepConfig(max_retries=5))]), "hello")
    assert (len(engine.history(result.run_id)), names(engine, result.run_id)) == (6, [])


def test_an_agent_of_yours_that_names_its_model_has_one(engine):
    class Mine:
        model = "acme:large"

        async def run(self, data):
            raise ConnectionRefusedError("the provider")

    result = engine.run(Pipeline([Step("ask", Mine(), config=StepConfig(max_retries=2))]), "hello")
    assert breaker_events(engine, result.run_id)[0].data["model"] == "acme:large"


def test_a_model_that_cannot_be_made_fails_its_attempt_and_nothing_else(engine):
    def broken():
        raise RuntimeError("no key")

    result = engine.run(Pipeline([Step("ask", make_agent_async(broken), config=ONCE)]), "hello")
    assert result.step_history[0].feedback == "Agent execution failed with RuntimeError: no key"
    assert names(engine, result.run_id) == []


def test_a_redirects_model_is_told_of_and_not_asked(engine):
    """Asked is at the attempt's start; what happens after it counts."""
    down = Provider(*[DOWN] * 3, name="other")

    class Elsewhere:
        async def validate(self, data):
            return PluginOutcome(success=False, redirect_to=make_agent_async(down.model))

    step = Provider().step(config=ONCE, plugins=[Elsewhere()])
    runs = [engine.run(Pipeline([step]), "hello").run_id for _ in range(3)]
    assert [names(engine, run) for run in runs] == [[], [], ["opened"]]


def test_a_prechecks_validator_is_told_of_too(engine):
    """Its failure fails no attempt, and its model's breaker counts it."""
    judge = make_agent_async(Provider(*[DOWN] * 3, name="judge").model)
    gates = {"reasoning_precheck": {"enabled": True, "validator_agent": judge}}
    pipeline = Pipeline([Provider().step(config=ONCE, processing=gates)])
    results = [engine.run(pipeline, "<thinking>a plan</thinking> go") for _ in range(3)]
    assert [result.output for result in results] == ["well"] * 3
    assert breaker_events(engine, results[-1].run_id)[0].data["model"] == "function:judge"


def test_calls_after_the_first_count(engine):
    """A model that fails in the turn after a tool's answer."""
    turns = iter([None, DOWN] * 3)

    def answer(messages, info):
        if error := next(turns):
            raise error
        return ModelResponse([ToolCallPart("look", {})])

    agent = make_agent_async(FunctionModel(answer, model_name="turns"), tools=[look])
    result = engine.run(Pipeline([Step("talk", agent, config=StepConfig(max_retries=2))]), "hello")
    assert names(engine, result.run_id) == ["opened"]


def look() -> str:
    """Look."""
    return "seen"


def test_an_attempt_that_never_called_gives_its_probe_back(engine):
    """Its prompt processor failed: someone else may try."""
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")

    def broken(data):
        raise ValueError("a bug")

    step = Provider().step(config=ONCE, processors=AgentProcessors(prompt_processors=[broken]))
    assert names(engine, engine.run(Pipeline([step]), "hello").run_id) == ["waiting", "half_open"]
    began = engine.now
    result = engine.run(Pipeline([Provider().step()]), "hello")
    assert (names(engine, result.run_id), engine.now - began) == (["closed"], 0)


def test_what_waits_has_reserved_nothing(engine):
    """M-044: a run under limits is charged for calls, not for waits."""
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")
    config = StepConfig(max_retries=0, expected_tokens=50)
    run = engine.enqueue(Pipeline([Provider().step(config=config)]), "hello", limits=UsageLimits(total_tokens_limit=60))
    assert engine.deliver(engine.bus.popleft()) == "waiting"
    assert asked(engine.stores).read_budgets()[f"run:{run}"].reserved.tokens == 0
    engine.drain()
    assert engine.result(run).success


def test_a_fan_outs_branches_wait_and_join(engine):
    """A branch that is put off is no part of its chord until it has closed."""
    provider = Provider(DOWN, DOWN, DOWN)
    branches = {f"b{number}": provider.step() for number in range(5)}
    result = engine.run(Pipeline([Step.parallel("all", branches)]), "hello")
    assert result.output == dict.fromkeys(branches, "well")
    assert Counter(names(engine, result.run_id))["waiting"] >= 4


def test_a_run_past_its_deadline_ends_while_it_waits(engine):
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")
    run = engine.enqueue(Pipeline([Provider().step()]), "hello", deadline=engine.now + 10)
    assert engine.deliver(engine.bus.popleft()) == "waiting"
    engine.pass_time(11)
    assert engine.result(run).run_status == "expired"


@pytest.mark.engine(breakers={"enabled": False})
def test_turned_off_no_one_waits(engine):
    provider = Provider(*[DOWN] * 8)
    result = engine.run(Pipeline([provider.step()]), "hello")
    assert (provider.calls, names(engine, result.run_id)) == (9, [])


def test_a_step_that_continues_with_an_answer_to_its_tool_waits_too(engine):
    """M-327, M-463: it asks its model again, as any step does."""

    def asks(task):
        raise PausedException("May it go out?")

    def respond(messages, info):
        calls.append(engine.now)
        has_called = messages[-1].parts[-1].part_kind == "tool-return"
        return ModelResponse([TextPart("well") if has_called else ToolCallPart("run_asker", {"task": "t"})])

    calls = []
    agent = make_agent_async(FunctionModel(respond, model_name="large"), tools=[AgentTool(asks, name="asker")])
    run = engine.enqueue(Pipeline([Step("main", agent, config=ONCE)]), "go")
    engine.drain()
    engine.run(Pipeline([Provider(DOWN, DOWN, DOWN).step(config=StepConfig(max_retries=2))]), "hello")
    answered = engine.now
    engine.answer(run, "yes")
    engine.drain()
    assert engine.result(run).output == "well"
    assert names(engine, run) == ["waiting", "half_open", "closed"]
    assert calls[1] - answered >= 29
