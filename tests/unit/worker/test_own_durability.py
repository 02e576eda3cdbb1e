"""Agents that are durable by their own capability: in steps, as tools and outside of attempts."""

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.profiles import ModelProfile

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents import AgentTool
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing import LocalEngine

ONCE_MORE = StepConfig(max_retries=1)


class Scripted:
    """A model that calls these tools, one each turn, and is down once before its last answer."""

    def __init__(self, *tools, down=True, profile=None):
        self.tools, self.is_down, self.asked = tools, down, []
        self.model = FunctionModel(self.answer, profile=profile)

    def answer(self, messages, info):
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        self.asked.append(turn)
        if turn < len(self.tools):
            return ModelResponse([ToolCallPart(self.tools[turn], {"task": "look"}, tool_call_id=f"c{turn}")])
        if self.is_down:
            self.is_down = False
            raise ModelHTTPError(503, "scripted", "overloaded")
        return ModelResponse([TextPart("done")])


def look(task: str) -> str:
    return f"{task}: seen"


def performed(agent, config=ONCE_MORE):
    with LocalEngine() as engine:
        return engine.run(Pipeline([Step("ask", agent, config=config)]), "go")


@pytest.fixture
def scripted():
    return Scripted("look")


def durable(model, **rest):
    return Agent(model, name="asker", tools=[look], capabilities=[FlujoDurability()], **rest)


def test_an_outage_repeats_only_the_call_that_failed(scripted):
    result = performed(durable(scripted.model))
    assert (result.output, scripted.asked) == ("done", [0, 1, 1])


def test_it_is_asked_by_the_models_name_too():
    """Our instances of named models are not those that it knows."""
    agent = Agent("local:mock", name="echo", defer_model_check=True, capabilities=[FlujoDurability()])
    assert performed(agent).output == "go"


def test_another_model_takes_its_place(scripted):
    """As cassettes do."""
    agent = durable("local:mock", defer_model_check=True)
    with agent.override(model=scripted.model):
        assert performed(agent).output == "done"
    assert scripted.asked == [0, 1, 1]


def test_outside_of_attempts_it_changes_nothing():
    scripted = Scripted("look", down=False)
    assert durable(scripted.model).run_sync("go").output == "done"
    assert scripted.asked == [0, 1]


def delegating(inner, caller):
    return Agent(caller.model, name="caller", tools=[AgentTool(inner).as_tool()])


def test_as_a_tool_its_calls_are_units():
    inner, caller = Scripted("look", down=False), Scripted("run_asker")
    result = performed(delegating(durable(inner.model), caller), StepConfig(max_retries=1, durable=True))
    assert (result.output, inner.asked, caller.asked) == ("done", [0, 1], [0, 1, 1])


def test_an_agent_that_is_not_durable_pays_for_its_own_calls_beside_it():
    def tokens(sub_agent):
        result = performed(delegating(sub_agent, Scripted("run_asker", down=False)))
        return sum(each.token_counts for each in result.step_history)

    inner = Scripted("look", down=False)
    plain = Agent(inner.model, name="asker", tools=[look])
    assert tokens(durable(inner.model)) == tokens(plain) > 0


class Answer(BaseModel):
    text: str


class Counted(FunctionToolset):
    """A toolset whose id is not given but derived, as from a server's address: no check before the run sees that."""

    looked_at, id, _explicit_id = 0, "derived", None

    def visit_and_replace(self, visitor):
        Counted.looked_at += 1
        return super().visit_and_replace(visitor)


def test_an_error_of_durability_is_not_taken_for_the_providers():
    """An agent that cannot be durable is not asked again without the form of its output."""
    scripted = Scripted(profile=ModelProfile(supports_json_schema_output=True))
    agent = Agent(scripted.model, output_type=Answer, toolsets=[Counted([look])])
    with LocalEngine() as engine:
        step = Step("ask", agent, config=StepConfig(durable=True), processing={"structured_output": "auto"})
        result = engine.run(Pipeline([step]), "go")
    assert result.run_status == "failed"
    assert "unique `id`" in str(result.error)
    assert (Counted.looked_at, scripted.asked) == (1, [])


def test_a_toolset_that_is_made_in_the_run_of_a_durable_step_has_its_calls_on_record():
    scripted, calls = Scripted("look"), []
    agent = Agent(scripted.model, name="late")

    def look(task: str) -> str:
        calls.append(task)
        return task

    @agent.toolset(id="made")
    def made(ctx):
        return FunctionToolset([look], id="inner")

    with LocalEngine() as engine:
        config = ONCE_MORE.model_copy(update={"durable": True})
        result = engine.run(Pipeline([Step("ask", agent, config=config)], name="late"), "go")
    assert result.success
    assert calls == ["look"]  # the attempt after the outage has it from record
