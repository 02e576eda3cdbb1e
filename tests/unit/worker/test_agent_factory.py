"""`make_agent_async` (requirements §2.5): what its parameters mean, and what each of them does to a step."""

import asyncio
import json
import threading

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from flujo_client import AgentProcessors, Pipeline, Step, StepConfig
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.plan.identity import identify
from flujo_worker.agents import BaseAgent, make_agent_async

ONCE = StepConfig(max_retries=0)


class Fruit(BaseModel):
    name: str


class Wrapped:
    def __init__(self, agent):
        self.__flujo_target__ = agent

    async def run(self, data, **rest):
        return await self.__flujo_target__.run(data, **rest)


def attempts(agent, **config):
    [node] = compile_plan(Pipeline([Step("ask", agent, config=StepConfig(**config))])).nodes
    return node.max_attempts


def story(engine, agent, value="go", config=ONCE, **step):
    result = engine.run(Pipeline([Step("ask", agent, config=config, **step)]), value)
    return result, [(event.name, event.level, event.data) for event in engine.story(result.run_id)]


def test_max_retries_are_the_attempts_of_a_step_that_says_nothing():
    """C-37: one retry layer; the agent itself never tries again."""
    agent = make_agent_async("test", max_retries=4)
    assert attempts(agent) == 5
    assert attempts(Wrapped(agent)) == 5
    assert attempts(agent, max_retries=0) == 1
    assert attempts(make_agent_async("test")) == attempts(str.upper) == 2


def test_a_failing_agent_is_asked_so_often_and_no_more(engine):
    asked = []

    def fail(*_):
        asked.append(1)
        raise ValueError("no")

    result, _ = story(engine, make_agent_async(FunctionModel(fail), max_retries=2), config=StepConfig())
    assert (len(asked), result.step_history[0].attempts) == (3, 3)


def test_timeout_is_the_steps_where_it_says_nothing(engine):
    """A base agent's options are the factory's."""

    async def hang(*_):
        await asyncio.Event().wait()

    agent = BaseAgent(FunctionModel(hang), timeout=0.05)
    assert Step("ask", agent).config.timeout_s == 0.05
    assert Step("ask", agent, config=StepConfig(timeout_s=9)).config.timeout_s == 9
    result, _ = story(engine, agent)
    assert "TimeoutError" in result.step_history[0].feedback
    with pytest.raises(TimeoutError):
        asyncio.run(agent.run("alone"))


class Sealed(Exception):
    """An error that takes no attributes but Python's own."""

    def __setattr__(self, name, value):
        if not name.startswith("__"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_an_error_that_cannot_be_written_to_stays_the_one_that_is_named(engine):
    def fail(*_):
        raise Sealed("no")

    result, _ = story(engine, make_agent_async(FunctionModel(fail)))
    assert "AttributeError" not in result.step_history[0].feedback


def test_auto_repair_turns_aros_on_for_a_step_without_a_block(engine):
    """C-05: nothing is repaired unless someone asked for it."""
    untidy = TestModel(custom_output_text='Sure: {"name": "kiwi",}')
    model = FunctionModel(lambda *_: ModelResponse([TextPart(untidy.custom_output_text)]))
    assert Step("ask", make_agent_async(model)).processing is None
    agent = make_agent_async(model, output_type=Fruit, auto_repair=True)
    assert Step("ask", agent).processing == {}
    assert Step("ask", agent, processing={"aop": "off"}).processing == {"aop": "off"}
    result, _ = story(engine, agent)
    assert result.output == Fruit(name="kiwi")
    assert not story(engine, make_agent_async(model, output_type=Fruit))[0].step_history[0].success


def test_its_own_processors_are_inside_those_of_the_step(engine):
    asked = []

    def model(messages, _):
        asked.append(messages[-1].parts[-1].content)
        return ModelResponse([TextPart("said")])

    class Named:
        def process(self, data, context):
            return f"{data}[{context}]"

    async def later(data):
        return f"{data}+"

    own = AgentProcessors([Named()], [later])
    steps = AgentProcessors([lambda data: f"step:{data}"], [lambda data: f"{data}:step"])
    agent = make_agent_async(FunctionModel(model), processors=own)
    result, _ = story(engine, agent, processors=steps)
    assert asked == ["step:go[None]"]
    assert result.output == "said+:step"
    assert identify(agent) != identify(make_agent_async(FunctionModel(model)))


def thread(*_):
    return threading.current_thread().name


class Prompted(BaseAgent):
    def _build_user_prompt(self, task, context):
        return thread()


@pytest.mark.parametrize(
    "agent",
    [
        make_agent_async("local:mock", processors=AgentProcessors([thread])),
        make_agent_async("local:mock", processors=AgentProcessors([], [thread])),
        Prompted("local:mock"),
    ],
)
def test_its_authors_code_runs_in_threads_that_are_left_behind_when_it_hangs(engine, agent):
    """The loop's own threads are few, and keep the process from ending."""
    assert story(engine, agent)[0].output == "flujo-user"


def test_a_type_adapter_is_taken_for_its_type():
    agent = make_agent_async("local:mock", output_type=TypeAdapter(list[int]))
    assert agent.output_type == list[int]
    assert asyncio.run(agent.run("[1, 2]")).output == [1, 2]


@pytest.mark.parametrize(
    ("output_type", "asked", "output"),
    [(str, "hello", "hello"), (Fruit, '{"name": "kiwi"}', Fruit(name="kiwi")), (int, "3", 3)],
)
def test_the_mock_model_answers_with_what_it_is_asked(engine, output_type, asked, output):
    """§2.5: `local:mock`, for trying out."""
    result, _ = story(engine, make_agent_async("local:mock", output_type=output_type), asked)
    assert result.raise_for_status().output == output
    assert result.step_history[0].cost_usd == 0


def test_an_agents_own_settings_give_way_to_the_steps(engine):
    seen = []

    def model(_, info):
        seen.append(info.model_settings)
        return ModelResponse([TextPart("fine")])

    agent = make_agent_async(FunctionModel(model), temperature=0.1, max_tokens=5)
    story(engine, agent, config=StepConfig(max_retries=0, temperature=0.9))
    assert seen == [{"temperature": 0.9, "max_tokens": 5}]


def test_an_option_that_an_agent_does_not_take_is_told(engine):
    """C-36, M-024: dropped without error, but not in silence."""
    result, told = story(engine, str.upper, config=StepConfig(max_retries=0, temperature=0.5, top_k=3))
    assert result.output == "GO"
    [event] = [each for each in told if each[0] == "agent.option.dropped"]
    assert event[1:] == ("warning", {"options": ["temperature", "top_k"], "agent": "upper"})


def test_options_that_are_taken_are_not_told(engine):
    def takes(data, *, temperature):
        return [data, temperature]

    result, told = story(engine, takes, config=StepConfig(max_retries=0, temperature=0.5))
    assert result.output == ["go", 0.5]
    assert "agent.option.dropped" not in [name for name, *_ in told]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_retries": -1}, "max_retries must be at least 0, got -1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, got 0"),
        ({"model_settings": {"max_retries": 2}}, "model_settings.max_retries would try again inside an attempt"),
    ],
)
def test_what_cannot_be_is_refused_when_the_agent_is_made(options, said):
    with pytest.raises(ConfigurationError, match=f"agent 'clerk': {said}"):
        make_agent_async("test", name="clerk", **options)


@pytest.mark.parametrize("model", ["nobody:model", "gpt-4o"])
def test_a_model_that_no_one_provides_fails_at_once(engine, model):
    result, _ = story(engine, make_agent_async(model), config=StepConfig(max_retries=3))
    [failed] = result.step_history
    assert failed.attempts == 1
    assert f"ConfigurationError: unknown model '{model}'" in failed.feedback


def test_a_variable_prompt_is_json_as_before():
    assert json.loads(asyncio.run(make_agent_async("local:mock").run({"a": [1]})).output) == {"a": [1]}


async def hang(*_):
    await asyncio.Event().wait()


slow = make_agent_async(FunctionModel(hang), timeout=0.05)


def test_an_agent_named_by_a_reference_brings_its_timeout(engine):
    """The client does not import it; the worker does."""
    result, _ = story(engine, "test_agent_factory:slow")
    assert "TimeoutError: no answer within 0.05 s" in result.step_history[0].feedback


def test_a_processor_that_raises_leaves_what_was_spent(engine):
    """M-044."""

    def refuse(data):
        raise ValueError("no")

    agent = make_agent_async("local:mock", processors=AgentProcessors((), [refuse]))
    [failed] = story(engine, agent)[0].step_history
    assert "ValueError: no" in failed.feedback
    assert failed.token_counts > 0


def test_an_agents_own_settings_are_part_of_who_it_is():
    """The fingerprint: another temperature is another agent."""
    first, second = (identify(make_agent_async("test", temperature=each)) for each in (0.1, 0.2))
    assert first != second
