"""What an attempt tells of its talk with a model (requirements §2.9), and which attempt user code is told that it runs in."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Settings, Step, StepConfig, current_attempt
from flujo_client.config.models import Log
from flujo_client.redact import hide_fields
from flujo_worker.agents import BaseAgent, make_agent_async, make_templated_agent_async
from flujo_worker.testing import LocalEngine

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz"
ONCE = StepConfig(max_retries=0)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def says(text):
    return TestModel(custom_output_text=text)


def ran(agent, value="go", *, config=ONCE, log=None, **step):
    """The story of a run of one step, as names and data."""
    with LocalEngine(Settings(log=log or Log())) as engine:
        run = engine.enqueue(Pipeline([Step("write", agent, config=config, **step)]), value)
        engine.drain()
        return [(event.name, event.level, event.data) for event in engine.story(run)]


def of(story, name):
    return [data for each, _, data in story if each == name]


def agent_events(story):
    return [(name, level) for name, level, _ in story if name.startswith("agent.")]


def test_what_a_model_is_asked_and_answers_is_told_in_its_order():
    story = ran(make_agent_async(says("fine"), "Be brief."), {"topic": "bees"})
    names = ["agent.input", "agent.system", "agent.prompt", "agent.response"]
    assert agent_events(story) == [*((name, "debug") for name in names), ("agent.usage", "info")]
    assert of(story, "agent.system") == [{"model_id": "test", "attempt": 1, "system_prompt_preview": "Be brief."}]
    assert of(story, "agent.prompt") == [{"prompt_preview": '{\n  "topic": "bees"\n}'}]
    assert of(story, "agent.response") == [{"response_preview": "fine"}]
    [usage] = of(story, "agent.usage")
    assert (usage["call"], usage["requests"]) == ("agent", 1)
    assert min(usage["input_tokens"], usage["output_tokens"]) > 0


def test_an_agent_of_the_library_is_told_of_too():
    story = ran(Agent(says("fine"), system_prompt=("Be brief.", "Be kind.")))
    assert of(story, "agent.system")[0]["system_prompt_preview"] == "Be brief.\n\nBe kind."


def test_a_plain_function_has_no_such_events():
    """A run without models tells what it always told."""
    assert agent_events(ran(str.upper)) == []


def test_a_prompt_has_the_guidance_that_the_input_has_not():
    """M-051: the second attempt is told why the first one failed."""
    answers = iter([ModelRetry("no bees"), None])

    def model(messages, info):
        if error := next(answers):
            raise error
        return ModelResponse(parts=[TextPart("fine")])

    story = ran(make_agent_async(FunctionModel(model)), config=StepConfig(max_retries=1))
    assert [data["attempt"] for data in of(story, "agent.system")] == [1, 2]
    assert of(story, "agent.input") == [{"input_preview": "go"}] * 2
    first, second = (data["prompt_preview"] for data in of(story, "agent.prompt"))
    assert first == "go"
    assert "no bees" in second


@pytest.mark.parametrize("around", [0, 191, 199])
def test_previews_are_short_and_have_no_secrets(around):
    """§2.9: a key that the cut goes through is hidden as a whole."""
    text = "x" * around + f" {KEY} " + "y" * 1000
    story = ran(make_agent_async(says(text), text), text)
    previews = [
        value
        for name, _, data in story
        if name.startswith("agent.")
        for value in data.values()
        if isinstance(value, str)
    ]
    assert sum(len(each) == 200 for each in previews) == 4
    assert not any("proj" in each for each in previews)


def test_fields_are_hidden_by_their_names():
    story = ran(make_agent_async(says("fine")), {"user": "ana", "db_password": "hunter2"})
    assert "ana" in str(story)
    assert "hunter2" not in str(story)


def test_full_prompts_are_told_under_the_debug_switch_only():
    """§2.9."""
    text = "bees " * 1000
    story = ran(make_agent_async(says(text)), text, log=Log(prompts="full"))
    assert of(story, "agent.prompt") == [{"prompt_preview": text}]
    assert of(story, "agent.response") == [{"response_preview": text}]


def test_prompts_can_be_kept_out_of_the_story():
    story = ran(make_agent_async(says("fine")), log=Log(prompts="off"))
    assert agent_events(story) == [("agent.usage", "info")]


def test_what_a_failed_call_has_cost_is_told():
    """M-044: a model that answered, and an agent that would not take it."""

    def refuse(_):
        raise RuntimeError("no")

    agent = Agent(says("fine"), retries=0)
    agent.output_validator(refuse)
    story = ran(agent)
    assert [name for name, _ in agent_events(story)][-2:] == ["agent.prompt", "agent.usage"]


def test_an_agent_can_tell_which_attempt_it_is_in(engine):
    """SYS-20: in a coroutine and in a thread, with the trace context that the client gave."""
    seen = []

    async def here(data):
        seen.append(current_attempt())
        return data

    def there(data):
        seen.append(current_attempt())
        return data

    run = engine.enqueue(Pipeline([Step("here", here), Step("there", there)]), "go", trace_parent=PARENT)
    engine.drain()
    assert [(each.run_id, each.step, each.number, each.trace_parent) for each in seen] == [
        (run, "here", 1, PARENT),
        (run, "there", 1, PARENT),
    ]
    assert seen[0].key == f"{run}::here:1"
    assert current_attempt() is None


CONTEXT = {"city": "Rome", "db_password": "hunter2", "iban": "DE89", "text": "x" * 500}


@pytest.fixture
def hidden_iban():
    hide_fields(["iban"])
    yield
    hide_fields([])


def told_of(agent, prompts="full"):
    with LocalEngine(Settings(log=Log(prompts=prompts, redact=("iban",)))) as engine:
        run = engine.enqueue(Pipeline([Step("write", agent, config=ONCE)]), "go", context=CONTEXT)
        engine.drain()
        return [(event.name, event.level, event.data) for event in engine.story(run)]


def test_a_rendered_prompt_is_told_as_it_was_sent(hidden_iban):
    """§2.9, M-316: what the template made of the context, without what its fields' names tell to hide."""
    [prompt] = of(told_of(BaseAgent(says("fine"), "Be brief.")), "agent.prompt")
    assert '"city": "Rome"' in prompt["prompt_preview"]
    assert '"iban": ***' in prompt["prompt_preview"]
    assert "hunter2" not in prompt["prompt_preview"]


def test_a_rendered_system_prompt_is_told_with_its_variables(hidden_iban):
    """§2.9: `agent.system.vars`."""
    sent = []

    def model(messages, info):
        sent.append(info.instructions)
        return ModelResponse(parts=[TextPart("fine")])

    template = "You live in {{ context.city }} and {{ mood }}: {{ input }}."
    agent = make_templated_agent_async(FunctionModel(model), template, variables={"mood": "smile"})
    story = told_of(agent)
    assert sent == ["You live in Rome and smile: go."]
    assert of(story, "agent.system")[0]["system_prompt_preview"] == sent[0]
    [variables] = of(story, "agent.system.vars")
    assert variables["template"] == "given as text"
    assert (variables["variables"]["mood"], variables["variables"]["input"]) == ("smile", "go")
    context = variables["variables"]["context"]
    assert '"city": "Rome"' in context
    assert not any(secret in context for secret in ("DE89", "hunter2"))
    assert len(of(told_of(agent, "preview"), "agent.system.vars")[0]["variables"]["context"]) == 200
    assert of(told_of(agent, "off"), "agent.system.vars") == []


class Fruit(BaseModel):
    ripe: bool


def test_the_outputs_schema_is_told_as_it_was_sent():
    """Output schemas are as reachable as prompts."""
    schema = {"type": "object", "required": ["ripe"]}
    story = ran(make_agent_async("local:mock", output_type=Fruit), '{"ripe": true}', log=Log(prompts="full"))
    [told] = of(story, "agent.schema")
    assert told["mode"] == "tool"
    assert schema.items() <= json.loads(told["schema_preview"])[0]["schema"].items()
    assert of(ran(make_agent_async(says("x"))), "agent.schema") == []


@pytest.mark.parametrize("make", [Agent, make_agent_async])
def test_the_calls_of_tools_are_told_with_arguments_result_and_time(make):
    turns = iter(
        [ToolCallPart("look", {"at": "bees", "api_key": "hunter2"}), ToolCallPart("fall", {}), TextPart("done")]
    )

    def look(at: str, api_key: str) -> dict[str, str]:
        return {"seen": at, "password": api_key}

    def fall() -> None:
        raise ValueError("no bees")

    story = ran(make(FunctionModel(lambda *_: ModelResponse(parts=[next(turns)])), tools=[look, fall]))
    looked, fell = of(story, "agent.tool")
    assert looked.pop("latency_s") >= 0
    assert looked["function"] == "look"
    assert '"at": "bees"' in looked["arguments_preview"]
    assert '"seen": "bees"' in looked["result_preview"]
    assert (fell["function"], fell["error"]) == ("fall", "ValueError")
    assert "hunter2" not in str(story)


@pytest.mark.parametrize("make", [Agent, make_agent_async])
def test_each_request_of_a_call_with_tools_has_its_tokens(make):
    """They add up to those of the call; a single request has no line of its own."""
    used = iter([RequestUsage(input_tokens=50, output_tokens=8), RequestUsage(input_tokens=70, output_tokens=3)])
    turns = iter([[ToolCallPart("look_around", {}), ToolCallPart("look_around", {})], [TextPart("done")]])
    model = FunctionModel(lambda *_: ModelResponse(parts=next(turns), usage=next(used)))
    story = ran(make(model, tools=[look_around]))
    requests = of(story, "agent.request")
    assert [each.pop("latency_s") >= 0 for each in requests] == [True, True]
    assert [(each["input_tokens"], each["output_tokens"], each.get("functions")) for each in requests] == [
        (50, 8, ["look_around", "look_around"]),
        (70, 3, None),
    ]
    [call] = of(story, "agent.usage")
    assert (call["requests"], call["input_tokens"], call["output_tokens"]) == (2, 120, 11)
    order = [name for name, _ in agent_events(story)]
    assert order.index("agent.request") < order.index("agent.tool")
    assert of(ran(make(says("fine"))), "agent.request") == []


def look_around() -> str:
    return "bees"


def test_every_turn_of_a_conversation_is_told():
    """A tool's answer is a prompt as well."""
    turns = iter([ToolCallPart("look", {"at": "bees"}), TextPart("done")])

    def look(at: str) -> dict[str, str]:
        return {"seen": at, "api_key": "hunter2"}

    agent = make_agent_async(FunctionModel(lambda *_: ModelResponse(parts=[next(turns)])), tools=[look])
    first, second = (data["prompt_preview"] for data in of(ran(agent), "agent.prompt"))
    assert first == "go"
    assert '"seen": "bees"' in second
    assert "hunter2" not in second
