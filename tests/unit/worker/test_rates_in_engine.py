"""Rate limits over whole runs in one process: who waits, that a wait is not an attempt, and what a refusal does (SYS-19, U-13)."""

import pytest
from pydantic_ai import exceptions as ai
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Settings, Step, StepConfig
from flujo_worker import LocalEngine, make_agent_async
from flujo_worker.domain.rate import RateRules


class Provider:
    """A model that fails with these errors, one after another, and then answers. It records when it was asked."""

    def __init__(self, engine, *errors, tokens=100):
        self.engine, self.errors, self.calls, self.tokens = engine, list(errors), [], tokens
        self.model = FunctionModel(self.answer, model_name="large")

    def answer(self, messages, info):
        self.calls.append(self.engine.now)
        if self.errors:
            raise self.errors.pop(0)
        return ModelResponse([TextPart("well")], usage=RequestUsage(input_tokens=self.tokens))

    def pipeline(self, **config):
        config = StepConfig(**{"max_retries": 5, "max_tokens": 100, **config})
        return Pipeline([Step("talk", make_agent_async(self.model), config=config)], name="talk")


def engine_of(pattern="function:large", slow_start_s=0, **limit):
    settings = {"rate_limits": {"slow_start_s": slow_start_s, "models": {pattern: limit}}, "retry": {"base_s": 0.1}}
    return LocalEngine(Settings.model_validate(settings))


def event_data(engine, run, name="flujo.rate.waiting"):
    return [event.data for event in engine.story(run) if event.name == name]


def most_in_a_minute(calls):
    return max(sum(at <= other < at + RateRules().window_s for other in calls) for at in calls)


def test_no_minute_has_more_requests_than_allowed_and_a_wait_is_no_attempt():
    with engine_of(requests_per_minute=10) as engine:
        provider = Provider(engine)
        runs = [engine.enqueue(provider.pipeline(), "hello") for _ in range(30)]
        engine.drain()
        assert [engine.result(run).output for run in runs] == ["well"] * 30
        assert most_in_a_minute(provider.calls) <= 10
        assert max(provider.calls) - min(provider.calls) <= 30 / 10 * 60 / 0.9
        assert {row.number for run in runs for row in engine.history(run)} == {1}
        [waited] = event_data(engine, runs[-1])
        assert (waited["step"], waited["model"]) == ("talk", "function:large")
        assert waited["delay_seconds"] > 60


@pytest.mark.parametrize(("used", "least_s"), [(100, 100), (20, 20)])
def test_a_call_counts_what_it_has_used(used, least_s):
    """U-13: the estimate is set aside, and what was not used is free again: smaller answers, more calls."""
    with engine_of(tokens_per_minute=600) as engine:
        provider = Provider(engine, tokens=used)
        for _ in range(12):
            engine.run(provider.pipeline(), "hi")
        took = provider.calls[-1] - provider.calls[0]
        assert least_s * 0.9 <= took <= least_s * 1.4


def rate_refusal(seconds):
    return ai.ModelHTTPError(429, "large", headers={"Retry-After": str(seconds)})


@pytest.mark.parametrize("limit", [{}, {"requests_per_minute": 6000}])
def test_the_wait_that_a_provider_asks_for_delays_its_own_call_only(limit):
    """C-48: others are called meanwhile, with a limit and without one."""
    with engine_of("function:large" if limit else "function:other", **limit) as engine:
        provider = Provider(engine, rate_refusal(20.0))
        runs = [engine.enqueue(provider.pipeline(), "hello") for _ in range(4)]
        engine.drain()
        assert {engine.result(run).output for run in runs} == {"well"}
        assert [len(engine.history(run)) for run in runs] == [2, 1, 1, 1]
        first, *rest = provider.calls
        assert [round(at - first) for at in rest] == [0, 0, 0, 20]


def test_when_most_calls_are_refused_everybody_waits_as_long_as_the_provider_asks():
    """C-48: the share shows a limit. Who waits has made no call, and the breaker stays closed."""
    with engine_of("function:other") as engine:
        provider = Provider(engine, *[rate_refusal(20.0)] * 6)
        runs = [engine.enqueue(provider.pipeline(), "hello") for _ in range(10)]
        engine.drain()
        assert {engine.result(run).output for run in runs} == {"well"}
        assert [len(engine.history(run)) for run in runs] == [2] * 6 + [1] * 4
        assert min(provider.calls[6:]) - provider.calls[0] >= 20
        assert [len(event_data(engine, run, "flujo.rate.slowed")) for run in runs] == [0] * 5 + [1] + [0] * 4
        [waited] = event_data(engine, runs[-1])
        assert (waited["model"], waited["delay_seconds"] >= 20) == ("function:large", True)
        assert [event_data(engine, run, "flujo.breaker.opened") for run in runs] == [[]] * 10


def test_other_models_are_not_asked_about(monkeypatch):
    with engine_of("openai:*", requests_per_minute=1) as engine:
        provider = Provider(engine)
        for _ in range(3):
            engine.run(provider.pipeline(), "hello")
        assert len(set(provider.calls)) == 1


def test_tenants_have_limits_of_their_own_if_that_is_wished():
    with engine_of(requests_per_minute=1, per=["model", "tenant"]) as engine:
        provider = Provider(engine)
        for tenant in ("a", "b", "c"):
            engine.enqueue(provider.pipeline(), "hello", tenant=tenant)
        engine.drain()
        first = provider.calls[0]
        assert [at - first for at in provider.calls] == pytest.approx([0, 0, 0], abs=0.1)


@pytest.mark.parametrize("pattern", ["gpt-4o", "openai:", ":gpt", "open ai:gpt", ""])
def test_a_pattern_that_no_model_can_match_is_refused(pattern):
    with pytest.raises(ValueError, match="must be `provider:model`"):
        engine_of(pattern, requests_per_minute=1)


@pytest.mark.parametrize("limit", [{"requests_per_minute": 0}, {"tokens_per_minute": -1}, {"rpm": 3}, {"per": ["key"]}])
def test_a_limit_that_means_nothing_is_refused(limit):
    with pytest.raises(ValueError, match="rate_limits"):
        engine_of(**limit)
