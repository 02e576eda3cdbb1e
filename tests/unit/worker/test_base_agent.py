"""`BaseAgent`: its user message is rendered from task and context, alone and as a step's agent (M-314…M-317, M-328)."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, PipelineContext, Step, StepConfig
from flujo_client.errors import AgentError, TemplateError
from flujo_client.plan.identity import identify
from flujo_worker.agents import AgentResult, BaseAgent, PlanGeneratorAgent, make_agent_async, make_templated_agent_async
from flujo_worker.agents.templated import as_mapping

ONCE = StepConfig(max_retries=0)


class Shop(BaseModel):
    city: str
    tags: list[str] = []


class Model:
    """A model that keeps what it is sent."""

    def __init__(self):
        self.sent, self.settings = [], []
        self.model = FunctionModel(self._answer, model_name="kept")

    def _answer(self, messages, info):
        self.sent.append([(part.part_kind, part.content) for message in messages for part in message.parts])
        self.settings.append(info.model_settings)
        return ModelResponse([TextPart("done")])


def block(context):
    return f"\n\n## Context\n```json\n{json.dumps(context, indent=2, ensure_ascii=False)}\n```"


def run(engine, agent, value, context=None, model=Shop):
    pipeline = Pipeline([Step("ask", agent, config=ONCE)], context_model=model)
    return engine.run(pipeline, value, context=context)


@pytest.fixture
def fixed_model():
    return Model()


def test_one_system_and_one_user_message_are_sent(fixed_model):
    """M-315, M-316: the context is in the user's message and nowhere else."""
    agent = BaseAgent(fixed_model.model, "Be brief.")
    result = asyncio.run(agent.run("Go", context={"city": "Łódź"}))
    assert fixed_model.sent == [[("system-prompt", "Be brief."), ("user-prompt", "Go" + block({"city": "Łódź"}))]]
    assert (result.success, result.output, result.error, result.model) == (True, "done", None, "kept")
    assert result.usage.requests == 1


@pytest.mark.parametrize("context", [None, {}])
def test_without_a_context_the_task_is_all(fixed_model, context):
    """M-314."""
    asyncio.run(BaseAgent(fixed_model.model).run("Go", context))
    assert fixed_model.sent == [[("user-prompt", "Go")]]


def test_a_large_input_is_asked_whole(fixed_model):
    """Issue 7: what a model is sent is what the pipeline collected, however large it is."""
    rows = list(range(30_000))
    asyncio.run(make_agent_async(fixed_model.model).run(rows))
    assert json.loads(fixed_model.sent[0][-1][1]) == rows


def test_a_template_gets_a_large_input_whole():
    model = FunctionModel(lambda messages, info: ModelResponse([TextPart(str(info.instructions))]), model_name="m")
    answer = asyncio.run(make_templated_agent_async(model, "{{ input[-1] }}").run(list(range(30_000))))
    assert answer.output == "29999"


def test_as_a_steps_agent_it_is_told_the_pipelines_context(engine, fixed_model):
    """FSD-11: its `run` takes a context, so it is given one, as plain data; and the run's own context stays as it is (M-328)."""
    result = run(engine, BaseAgent(fixed_model.model), {"find": "shops"}, {"city": "Łódź", "tags": ["x"]})
    assert fixed_model.sent[0][-1][1] == '{\n  "find": "shops"\n}' + block({"city": "Łódź", "tags": ["x"]})
    assert result.output == "done"
    assert result.final_pipeline_context == Shop(city="Łódź", tags=["x"])


def test_a_step_passes_its_model_settings_on(engine, fixed_model):
    config = StepConfig(max_retries=0, temperature=0.25, top_p=0.5, max_tokens=7)
    engine.run(Pipeline([Step("ask", BaseAgent(fixed_model.model), config=config)]), "Go").raise_for_status()
    assert fixed_model.settings == [{"temperature": 0.25, "top_p": 0.5, "max_tokens": 7}]


def test_flujos_own_bookkeeping_is_not_told_to_a_model():
    """Of a PipelineContext only what someone wrote is of use in a prompt."""
    context = PipelineContext(run_id="r1", call_count=3, initial_prompt="hello", own=[1], scratchpad={"a": 1})
    assert as_mapping(context) == {"initial_prompt": "hello", "scratchpad": {"a": 1}, "own": [1]}
    assert as_mapping(PipelineContext(run_id="r1")) == {}
    assert as_mapping(Shop(city="x")) == {"city": "x", "tags": []}


def test_the_callers_context_is_left_alone(fixed_model):
    """M-304."""

    class Greedy(BaseAgent):
        def _build_user_prompt(self, task, context):
            context["tags"].append("mine")
            return task

    mine = {"tags": ["x"]}
    asyncio.run(Greedy(fixed_model.model).run("Go", mine))
    assert mine == {"tags": ["x"]}


def test_a_subclass_names_its_own_template_or_writes_its_own_prompt(fixed_model, tmp_path, monkeypatch):
    """M-317, M-314: `user_prompt_template` and `_build_user_prompt`."""
    (tmp_path / "shop_prompts").mkdir()
    (tmp_path / "shop_prompts" / "ask.j2").write_text("{{ task }} in {{ context.city }}", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    class Named(BaseAgent):
        user_prompt_template = "shop_prompts:ask.j2"

    class Written(BaseAgent):
        def _build_user_prompt(self, task, context):
            return super()._build_user_prompt(task.upper(), None)

    asyncio.run(Named(fixed_model.model).run("Go", {"city": "Rome"}))
    asyncio.run(Written(fixed_model.model).run("Go", {"city": "Rome"}))
    assert [each[-1][1] for each in fixed_model.sent] == ["Go in Rome", "GO"]


def test_the_plan_generator_is_told_what_was_collected(engine, fixed_model):
    """M-317, M-322, through the engine."""
    item = {"agent_name": "a", "description": "b", "output": {"c": 1}}
    run(engine, PlanGeneratorAgent(fixed_model.model), "Plan", {"collected_information": [item]}, model=None)
    prompt = fixed_model.sent[0][-1][1]
    assert prompt.startswith("Plan\n\nTask name: Generate Crawl Plan\n\n# Collected Information\n\n## From a\n")
    assert "step_outputs" not in prompt


def test_a_template_that_is_not_there_fails_the_step_at_once(engine, fixed_model):
    class Lost(BaseAgent):
        user_prompt_template = "lost.j2"

    step = Step("ask", Lost(fixed_model.model), config=StepConfig(max_retries=3))
    result = engine.run(Pipeline([step], context_model=Shop), "Go", context={"city": "x"})
    [failed] = result.step_history
    assert (failed.attempts, fixed_model.sent) == (1, [])
    assert f"{TemplateError.__name__}: template 'lost.j2': there is no lost.j2" in failed.feedback


def test_an_agent_that_says_it_failed_fails_its_attempt(engine):
    """An AgentResult is data for a calling agent, and an outcome for a step."""

    class Modest:
        async def run(self, data):
            return AgentResult("half of it", success=False, error="the site is down")

    [failed] = run(engine, Modest(), "Go", {"city": "x"}).step_history
    assert f"{AgentError.__name__}: the site is down" in failed.feedback
    assert not failed.success


def test_guidance_comes_after_the_rendered_prompt(engine):
    """M-051: a second attempt is told why the first failed."""
    said = []

    def answer(messages, _):
        said.append(messages[-1].parts[-1].content)
        if len(said) == 1:
            raise ModelRetry("no bees")
        return ModelResponse([TextPart("done")])

    step = Step("ask", BaseAgent(FunctionModel(answer)), config=StepConfig(max_retries=1))
    engine.run(Pipeline([step], context_model=Shop), "Go", context={"city": "x"}).raise_for_status()
    assert said[1].startswith(said[0] + "\n\nYour previous answer was not accepted: ")
    assert "no bees" in said[1]


def test_two_agents_are_distinguished_by_class_template_and_prompt():
    """The fingerprint: what a run was sent with is what performs it."""

    class Other(BaseAgent):
        user_prompt_template = "other.j2"

    agents = [BaseAgent("test"), BaseAgent("test", "x"), Other("test"), PlanGeneratorAgent("test")]
    assert len({str(identify(agent)) for agent in agents}) == 4
    assert identify(BaseAgent("test")) == identify(BaseAgent("test"))
