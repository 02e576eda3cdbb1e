"""FSD-11 through broker and worker: an agent is given the context if, and only if, it can take it (SYS-08)."""

import time
from pathlib import Path

import injection_pipelines as agents
import pytest
from injection_pipelines import MyContext

from flujo_client import Flujo
from flujo_client.errors import RunFailed
from flujo_worker.runtime.call_args import accepted_kwargs
from tests.support.fleet import STEADY

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=STEADY, workers=1, code=Path(__file__).parent)]


@pytest.fixture
def run(site):
    """Run a pipeline to its end with a context model configured, as the seed's cases say."""

    def run(pipeline, *, context_model=MyContext, data="hello"):
        with Flujo(pipeline, context_model=context_model, settings=site.settings) as flujo:
            return flujo.run(data, timeout=60)

    return run


def test_a_stateless_factory_agent_is_not_given_the_context(run):
    """M-033, M-022, M-031: no TypeError, and the model is told the input alone."""
    result = run(agents.stateless).raise_for_status()
    assert [step.output for step in result.step_history] == ["hello", "hello"]
    assert [step.attempts for step in result.step_history] == [1, 1]


def test_an_agent_with_a_context_parameter_receives_it_and_its_change_survives(run):
    """M-034, M-028: typed, modifiable, and the next step finds the change."""
    result = run(agents.explicit).raise_for_status()
    assert result.step_history[1].output == "hello 1 2"
    assert result.output == (2, ["MyContext", "MyContext"])
    assert result.final_pipeline_context == MyContext(count=2, seen=["MyContext", "MyContext"])


def test_an_agent_with_keywords_finds_the_context_in_them(run):
    """M-035, M-038, M-024: next to the options that are set."""
    result = run(agents.keywords).raise_for_status()
    assert result.output == ["context", "temperature"]
    assert result.final_pipeline_context.seen == ["hello"]


def test_without_a_context_nothing_is_injected(run):
    """M-023: not even None."""
    result = run(agents.keywords, context_model=None).raise_for_status()
    assert result.output == ["temperature"]
    assert result.final_pipeline_context is None


@pytest.mark.parametrize("pipeline", [agents.raising, agents.raising_factory], ids=["own agent", "factory agent"])
def test_feedback_names_the_agents_own_error(run, site, pipeline):
    """M-036, M-025, M-026: on the client's result and in the stored row, through every layer that wraps the agent."""
    result = run(pipeline)
    assert "ValueError: Internal error" in result.step_history[-1].feedback
    [attempt] = site.attempts(result.run_id)
    assert "ValueError: Internal error" in attempt["error"]["feedback"]
    with pytest.raises(RunFailed, match="ValueError: Internal error"):
        result.raise_for_status()


@pytest.mark.parametrize("agent", [agents.Explicit(), agents.Keywords(), agents.stateless.steps[0].agent])
def test_the_decision_costs_less_than_a_millisecond(agent):
    """M-027, NFR-13: 10 000 decisions on average, and the first one for an agent of a class not seen before."""
    options = {"context": MyContext(), "temperature": 0.5}
    began = time.process_time()
    for _ in range(10_000):
        accepted_kwargs(agent, options)
    assert (time.process_time() - began) / 10_000 < 0.001


def test_the_first_decision_costs_less_than_a_millisecond():
    """M-027: cold, the best of some agents, for the machine may be busy."""
    took = []
    for _ in range(20):
        fresh = type("Fresh", (), {"run": eval("lambda self, data, *, context, **options: data")})()
        began = time.perf_counter()
        assert accepted_kwargs(fresh, {"context": 1, "temperature": 0.5}) == {"context": 1, "temperature": 0.5}
        took.append(time.perf_counter() - began)
    assert min(took) < 0.001
