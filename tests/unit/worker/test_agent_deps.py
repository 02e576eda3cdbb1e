"""The deps of agents on pydantic-ai: the pipeline's resources or its context, by the agent's `deps_type`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel

from flujo_client import Pipeline, PipelineContext, Step
from flujo_client.errors import PipelineError
from flujo_worker import LocalEngine, make_agent_async


@dataclass
class Tariffs:
    per_kilo: float = 4.5


class Shop(PipelineContext):
    currency: str = "EUR"


class Other:
    pass


def asking(deps_type):
    agent = Agent(TestModel(), deps_type=deps_type)

    @agent.tool
    def look_up(ctx: RunContext) -> str:
        return f"deps are {ctx.deps}"

    return agent


def look_up(ctx: RunContext[Tariffs]) -> str:
    return f"deps are {ctx.deps}"


def tariffs():
    return Tariffs(80.0)


def anything():
    return Other()


def ran(agent, **options):
    with LocalEngine() as engine:
        return engine.run(Pipeline([Step("ask", agent)], **options), "how much?")


@pytest.mark.parametrize("resources", [tariffs, Tariffs, Tariffs(80.0)], ids=["function", "class", "object"])
def test_the_resources_are_the_deps(resources):
    result = ran(asking(Tariffs), resources=resources)
    assert result.success
    assert "deps are Tariffs(per_kilo=" in result.output


def test_the_context_is_the_deps_of_an_agent_that_declares_its_model():
    assert "currency='EUR'" in ran(asking(Shop), context_model=Shop).output


def test_tools_of_an_agent_of_ours_get_them_too():
    agent = make_agent_async(TestModel(), deps_type=Tariffs, tools=[look_up])
    assert "deps are Tariffs(per_kilo=80.0)" in ran(agent, resources=tariffs).output


def test_an_agent_without_deps_gets_none():
    agent = Agent(TestModel())

    @agent.tool
    def look_up(ctx: RunContext) -> str:
        return f"deps are {ctx.deps}"

    assert "deps are None" in ran(agent, resources=tariffs).output


@pytest.mark.parametrize(
    "options", [{}, {"resources": Other}, {"resources": Other()}, {"context_model": PipelineContext}]
)
def test_what_is_not_given_is_refused_before_it_is_sent(options):
    pipeline = Pipeline([Step("ask", asking(Tariffs))], **options)
    with pytest.raises(
        PipelineError, match="step 'ask': its agent needs deps of type Tariffs; make them with the pipeline's"
    ):
        ran(asking(Tariffs), **options)
    report = pipeline.validate_graph()
    assert ["deps of type Tariffs" in str(each) for each in report.errors] == [True]
    inside = Pipeline([Pipeline([Step("ask", asking(Tariffs))]).as_step("inner")], resources=tariffs)
    assert not inside.validate_graph().errors


def test_what_a_factory_makes_is_known_in_the_attempt():
    result = ran(asking(Tariffs), resources=anything)
    assert not result.success
    assert "needs deps of type Tariffs, but this attempt has Other" in result.step_history[0].feedback
    assert result.step_history[0].attempts == 1
