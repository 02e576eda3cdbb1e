"""Agents as tools: what a call passes on, what is refused, what it costs, and which signals go through (SYS-27)."""

import asyncio
import json

import pytest
from pydantic_ai import Agent
from pydantic_ai import exceptions as ai
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, PipelineContext, Settings, Step, StepConfig, UsageLimits
from flujo_client.contract.context import ContextState
from flujo_client.contract.outcome import Usage
from flujo_client.contract.trace import build_trace
from flujo_client.errors import (
    ConfigurationError,
    PausedException,
    PipelineAbortSignal,
    PricingNotConfiguredError,
    UsageLimitExceededError,
)
from flujo_worker.agents import AgentResult, AgentTool, make_agent_async
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import charge
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)
PLAN = {
    "type": "object",
    "required": ["target_url", "task_name", "collected_information"],
    "properties": {
        "target_url": {"type": "string", "description": "The site."},
        "task_name": {"type": "string", "default": "Generate Crawl Plan"},
        "collected_information": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/output"}},
    },
    "$defs": {"output": {"type": "object", "required": ["agent_name"]}},
    "additionalProperties": False,
}
COUNT = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
FOUND = [{"agent_name": "discovery_agent", "output": {"pages": 3}}]
RIGHT = {"task": "plan it", "target_url": "u", "collected_information": FOUND}
KEYS = {
    "success",
    "error",
    "validation_message",
    "path",
    "required_fields",
    "missing_fields",
    "provided_fields",
    "hint",
}


class Spy:
    """A sub-agent that keeps what it was called with."""

    def __init__(self, output="done"):
        self.calls, self.output = [], output

    async def run(self, task, *, context=None, run_identifier=None, expected_outputs=None, output_contract_schema=None):
        self.calls.append({key: value for key, value in locals().items() if key != "self"})
        return self.output


def plan_tool(agent=None, **rest):
    return AgentTool(agent or Spy(), name="plan_generator_agent", **{"input_schema": PLAN, **rest})


def called(tool, **kwargs):
    return asyncio.run(tool.execute(**kwargs))


def script(*turns):
    """A model that takes one turn after another: a text, or the arguments of its only tool. Keeps what it was asked."""
    left, asked = list(turns), []

    def respond(messages, info):
        asked.append((messages, info))
        turn = left.pop(0)
        if callable(turn):
            turn = turn(messages[-1].parts[-1].content)
        if isinstance(turn, str):
            return ModelResponse([TextPart(turn)])
        return ModelResponse([ToolCallPart(info.function_tools[0].name, turn)])

    model = FunctionModel(respond)
    model.asked = asked
    return model


def main_agent(tool, *turns):
    return make_agent_async(script(*turns), "Plan.", name="main", tools=[tool])


def ran(agent, value="go", *, settings=None, limits=None, **step):
    """A run of one step: its result and its events."""
    with LocalEngine(Settings.model_validate(settings or {})) as engine:
        run = engine.enqueue(Pipeline([Step("main", agent, **{"config": ONCE, **step})]), value, limits=limits)
        engine.drain()
        return engine.result(run), [(event.name, event.data) for event in engine.story(run)]


def of(story, name):
    return [data for each, data in story if each == name]


def test_what_is_passed_beside_the_task_reaches_the_agent():
    """M-300, M-301, M-303: the evidence call, with what was lost in it."""
    spy = Spy()
    given = called(
        plan_tool(spy),
        task="Generate comprehensive crawl plan",
        context=None,
        run_identifier="12c599f6",
        expected_outputs=["plan_file_path"],
        output_contract_schema={"type": "object"},
        target_url="https://example.com",
        collected_information=FOUND,
    )
    assert given == {"success": True, "output": "done"}
    [call] = spy.calls
    assert call["task"] == "Generate comprehensive crawl plan"
    assert call["context"] == {
        "target_url": "https://example.com",
        "collected_information": FOUND,
        "task_name": "Generate Crawl Plan",
    }
    assert (call["run_identifier"], call["expected_outputs"]) == ("12c599f6", ["plan_file_path"])
    assert call["output_contract_schema"] == {"type": "object"}


def test_arguments_go_before_the_context_of_the_same_name():
    """M-302."""
    called(AgentTool(spy := Spy(), name="x"), task="t", context={"a": 1, "b": 1}, b=2)
    assert spy.calls[0]["context"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
def test_the_callers_own_data_are_not_changed(schema):
    """M-304: not even by the agent that gets them."""

    def spoil(task, *, context):
        context["deep"].append(context.pop("a"))

    context, deep = {"a": 1}, [1]
    called(AgentTool(spoil, input_schema=schema), task="t", context=context, deep=deep)
    assert (context, deep) == ({"a": 1}, [1])


def test_an_agent_that_takes_no_context_gets_it_in_its_prompt():
    """Nothing that was collected is lost, whatever the agent."""
    prompts = [called(AgentTool(lambda data: data, name="x"), task="plan it", target_url="ü")["output"]]
    for agent in (make_agent_async(model := script("a"), name="x"), Agent(other := script("b"), name="x")):
        called(AgentTool(agent), task="plan it", target_url="ü")
    prompts += [each.asked[0][0][0].parts[-1].content for each in (model, other)]
    assert prompts == ['plan it\n\n## Context\n```json\n{\n  "target_url": "ü"\n}\n```'] * 3


def test_without_a_context_the_prompt_is_the_task():
    assert called(AgentTool(lambda data: data, name="x"), task="plan it") == {"success": True, "output": "plan it"}


def test_an_empty_call_is_refused_with_the_eight_keys():
    """M-305, M-306, M-307, M-310: the seed's example; the agent is not asked."""
    spy = Spy()
    refusal = called(plan_tool(spy), task="Generate plan", context=None)
    fields = ["target_url", "task_name", "collected_information"]
    assert refusal.keys() == KEYS
    message = refusal.pop("validation_message")
    assert refusal == {
        "success": False,
        "error": "Input contract validation failed",
        "path": [],
        "required_fields": fields,
        "missing_fields": fields,
        "provided_fields": [],
        "hint": f"Please provide all required fields: {', '.join(fields)}",
    }
    assert "is a required property" in message
    assert spy.calls == []


@pytest.mark.parametrize(
    ("given", "path", "missing"),
    [
        ({"target_url": "u"}, [], ["task", "task_name", "collected_information"]),
        ({"task": 3}, ["task"], ["target_url", "task_name", "collected_information"]),
        ({"task": " "}, ["task"], ["target_url", "task_name", "collected_information"]),
        ({"task": "t", "context": "u"}, ["context"], ["target_url", "task_name", "collected_information"]),
    ],
)
def test_a_call_without_a_task_is_refused_alike(given, path, missing):
    """C-31, M-304."""
    refusal = called(plan_tool(spy := Spy()), **given)
    assert refusal.keys() == KEYS
    assert (refusal["path"], refusal["missing_fields"]) == (path, missing)
    assert refusal["required_fields"] == ["task", "target_url", "task_name", "collected_information"]
    assert spy.calls == []


def test_a_stray_argument_is_dropped_unless_the_tool_is_strict():
    """C-27."""
    called(plan_tool(spy := Spy()), **RIGHT, stray=1)
    assert "stray" not in spy.calls[0]["context"]
    assert called(plan_tool(spy, strict=True), **RIGHT, stray=1)["success"] is False
    assert len(spy.calls) == 1


def test_an_output_that_breaks_its_contract_is_refused_alike():
    """M-309: matches what happens to an input."""
    refusal = called(plan_tool(Spy({"pages": 3}), output_schema=COUNT), **RIGHT)
    assert refusal.keys() == KEYS
    assert (refusal["error"], refusal["missing_fields"]) == ("Output contract validation failed", ["count"])


@pytest.mark.parametrize("output", [{"count": 3}, '{"count": 3}'])
def test_an_output_that_holds_is_data(output):
    """A model's text is read, where the contract wants no text."""
    given = called(plan_tool(Spy(output), output_schema=COUNT), **RIGHT)
    assert given == {"success": True, "output": {"count": 3}}


def test_what_an_agent_says_it_cannot_do_is_told():
    """M-315: to the agent that called it; for a step it is an error like any other."""

    def give_up(task):
        return AgentResult(None, Usage(6, 4, 1, 0.1), success=False, error="no such site")

    assert called(AgentTool(give_up), task="t") == {"success": False, "error": "no such site"}
    result, _ = ran(main_agent(AgentTool(give_up), {"task": "t"}, json.dumps))
    assert (json.loads(result.output)["error"], result.total_cost_usd) == ("no such site", pytest.approx(0.1))
    result, _ = ran(AgentTool(give_up), "t")
    assert "AgentError: no such site" in result.step_history[0].feedback


def test_the_tool_tells_what_it_wants():
    """M-311, M-312, M-313."""
    model = script("fine")
    agent = make_agent_async(model, tools=[plan_tool(description="Writes a plan.")])
    ran(agent)
    [tool] = model.asked[0][1].function_tools
    assert tool.name == "run_plan_generator_agent"
    assert tool.description.startswith("Writes a plan.")
    for told in (*PLAN["required"], "`context`"):
        assert told in tool.description
    schema = tool.parameters_json_schema
    assert list(schema["properties"]) == ["task", *PLAN["properties"], "context"]
    assert schema["properties"]["target_url"] == {"type": "string", "description": "The site."}
    assert (schema["required"], schema["$defs"]) == (["task"], PLAN["$defs"])


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 61])
def test_a_name_that_providers_do_not_take_is_refused(name):
    with pytest.raises(ConfigurationError, match="part of a tool's name"):
        AgentTool(lambda data: data, name=name)


@pytest.mark.parametrize("agent", [None, "shop.agents:planner", 3])
def test_what_is_no_agent_is_refused(agent):
    with pytest.raises(ConfigurationError, match="is not an agent"):
        AgentTool(agent, name="x")


@pytest.mark.parametrize("key", ["task", "context", "output_contract_schema"])
def test_a_contract_cannot_describe_what_is_not_in_the_context(key):
    with pytest.raises(ConfigurationError, match=f"property '{key}'"):
        AgentTool(Spy(), name="x", input_schema={"properties": {key: {}}})


def test_an_agent_that_forgets_reads_why_and_calls_again():
    """M-309: the error comes back as data, and the sub-agent is asked once."""
    spy, errors = Spy(["a plan"]), []
    agent = main_agent(
        plan_tool(spy),
        {"task": "plan it"},
        lambda refusal: errors.append(refusal) or RIGHT,
        json.dumps,
    )
    result, story = ran(agent)
    assert json.loads(result.output) == {"success": True, "output": ["a plan"]}
    assert errors[0]["missing_fields"] == PLAN["required"]
    assert len(spy.calls) == 1
    assert result.step_history[0].attempts == 1
    once = ["agent_tool.called", "agent_tool.input_invalid", "agent_tool.returned"]
    assert [name for name, _ in story if name in once] == [*once, once[0], once[2]]


@pytest.mark.parametrize(("arguments", "success"), [('"plan it"', True), ("[1]", False), ("null", False), ("", False)])
def test_arguments_that_are_no_object_are_the_task_or_refused(arguments, success):
    """C-31: whatever a model writes, it is told problems."""

    def respond(messages, info):
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("run_x", arguments)])
        return ModelResponse([TextPart(json.dumps(messages[-1].parts[-1].content))])

    agent = make_agent_async(FunctionModel(respond), tools=[AgentTool(lambda data: data, name="x")])
    result, _ = ran(agent)
    assert json.loads(result.output)["success"] is success


def test_an_agent_of_the_library_calls_it_too():
    """By `as_tool`: what it spends is the attempt's there, too."""
    tool = AgentTool(lambda data: AgentAnswer("ok", Usage(6, 4, 1, 0.1)), name="x")
    result, _ = ran(Agent(script({"task": "t"}, json.dumps), tools=[tool.as_tool()]))
    assert json.loads(result.output) == {"success": True, "output": "ok"}
    assert result.total_cost_usd == pytest.approx(0.1)


def test_each_call_is_told_with_its_contracts():
    """M-323: by hash; what is told inside belongs to the call."""
    agent = main_agent(plan_tool(make_agent_async(script("ok"), name="sub")), {**RIGHT, "stray": 1}, "done")
    _, story = ran(agent)
    [call] = of(story, "agent_tool.called")
    assert (call["tool"], call["tool_call"], call["agent"]) == ("run_plan_generator_agent", 1, "sub")
    assert call["input_contract"] == plan_tool().input.hash
    assert of(story, "agent_tool.dropped")[0]["properties"] == ["/stray"]
    [prompt] = [each for each in of(story, "agent.prompt") if each.get("tool_call") == 1]
    assert prompt["prompt_preview"].startswith("plan it\n\n## Context")


def test_a_refused_output_is_told():
    """M-309: what was wrong with it, too."""
    agent = main_agent(plan_tool(Spy({"pages": 3}), output_schema=COUNT), RIGHT, "done")
    _, story = ran(agent)
    [told] = of(story, "agent_tool.output_invalid")
    assert (told["missing_fields"], told["provided_fields"]) == (["count"], ["pages"])


def test_a_call_inside_a_call_says_so():
    """M-327: calls nest."""
    inner = make_agent_async(script({"task": "deeper"}, "b"), name="outer", tools=[AgentTool(Spy(), name="inner")])
    _, story = ran(main_agent(AgentTool(inner), {"task": "deep"}, "a"))
    nested = [(each["tool"], each["tool_call"], each.get("within")) for each in of(story, "agent_tool.called")]
    assert nested == [("run_outer", 1, None), ("run_inner", 2, 1)]


def test_calls_side_by_side_are_distinguished():
    """M-327: two in one turn, at work at the same time; each event says which it belongs to."""
    both = asyncio.Event()

    async def meet(task, *, context):
        emit("here", fact=context["fact"])
        if "here" in seen:
            both.set()
        seen.append("here")
        async with asyncio.timeout(30):
            await both.wait()
        return AgentAnswer(context["fact"], Usage(6, 4, 1, 0.1))

    def respond(messages, info):
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("run_meet", {"task": "t", "fact": each}) for each in ("a", "b")])
        return ModelResponse([TextPart("-".join(part.content["output"] for part in messages[-1].parts))])

    seen = []
    result, story = ran(make_agent_async(FunctionModel(respond), tools=[AgentTool(meet)]))
    assert (result.output, result.total_cost_usd) == ("a-b", pytest.approx(0.2))
    assert {(each["tool_call"], each["fact"]) for each in of(story, "here")} == {(1, "a"), (2, "b")}
    assert {each.get("within") for each in of(story, "agent_tool.called")} == {None}


def test_the_trace_nests_calls_below_their_attempt(engine):
    """M-327: with what they received, spent, and why they were refused."""
    inner = make_agent_async(script({"task": "deeper"}, "b"), name="outer", tools=[AgentTool(Spy(), name="inner")])
    tool = AgentTool(inner, input_schema={"required": ["fact"]})
    agent = main_agent(tool, {"task": "deep"}, {"task": "deep", "fact": 1}, "a")
    run = engine.enqueue(Pipeline([Step("main", agent)]), "go")
    engine.drain()
    stores = engine.stores
    trace = build_trace(
        stores.reads.read_run(run), engine.history(run), stores.reads.read_scopes(run), engine.story(run)
    )
    [attempt] = trace.children[0].children
    refused, called = attempt.children
    assert (refused.name, refused.kind, refused.status) == ("run_outer", "tool", "failed")
    assert "'fact' is a required property" in refused.attributes["feedback"]
    assert (called.status, called.attributes["agent"]) == ("succeeded", "outer")
    assert 0 < called.attributes["tokens"] < attempt.attributes["tokens"]
    assert [each.name for each in called.children] == ["run_inner"]
    assert "agent_tool.called" not in {event.name for event in attempt.events}
    assert "agent.prompt" in {event.name for event in called.events}


def test_a_call_that_takes_too_long_is_told():
    async def wait(task):
        await asyncio.sleep(60)

    agent = main_agent(AgentTool(wait), {"task": "t"}, "never")
    result, story = ran(agent, config=StepConfig(max_retries=0, timeout_s=2.0))
    assert not result.success
    assert of(story, "agent_tool.raised")[0]["error"] == "CancelledError"


def test_what_a_sub_agent_spends_is_the_attempts():
    """M-327: also if it fails, or its parent does."""
    spend = Usage(60, 40, 1, 0.5)

    def dear(task):
        return AgentAnswer("ok", spend)

    def fail(task):
        error = ValueError("no")
        charge(error, spend)
        raise error

    for sub, success in ((dear, True), (fail, False)):
        result, _ = ran(main_agent(AgentTool(sub), {"task": "t"}, "done"))
        assert result.success is success
        assert result.total_cost_usd == pytest.approx(0.5)
        assert result.total_tokens > 100


def test_a_run_that_passes_its_limit_by_a_sub_agent_fails():
    """M-327: the run's budget."""

    def dear(task):
        return AgentAnswer("ok", Usage(60, 40, 1, 0.5))

    agent = main_agent(AgentTool(dear), {"task": "t"}, "done")
    result, _ = ran(agent, limits=UsageLimits(total_cost_usd_limit=0.2))
    with pytest.raises(UsageLimitExceededError):
        result.raise_for_status()


def test_an_attempt_reserves_for_its_tools_agents_too():
    """M-327, ADR 24: each once, those of tools' tools as well; what does not fit is refused before anyone is asked."""

    def agent(name, *tools):
        return make_agent_async(FunctionModel(lambda *_: 1 / 0, model_name=name), name=name, tools=list(tools))

    whole = agent("big", AgentTool(agent("mid", AgentTool(agent("small")))))
    estimators = {f"*{name}": {"cost_usd": usd} for name, usd in (("big", 0.5), ("mid", 0.25), ("small", 0.125))}
    limits = UsageLimits(total_cost_usd_limit=0.8)
    result, story = ran(whole, settings={"cost": {"estimators": estimators}}, limits=limits)
    assert (result.status, result.total_tokens) == ("failed", 0)
    with pytest.raises(UsageLimitExceededError):
        result.raise_for_status()
    limits = UsageLimits(total_cost_usd_limit=0.9)
    _, story = ran(whole, settings={"cost": {"estimators": estimators}}, limits=limits)
    asked = {each["call"]: each["cost_usd"] for each in of(story, "flujo.budget.reserved")}
    assert asked == {"agent": 0.5, "run_mid": 0.25, "run_small": 0.125}


@pytest.mark.parametrize(
    ("signal", "status"),
    [
        (PausedException("May it?"), "paused"),
        (PipelineAbortSignal("stop"), "failed"),
        (UsageLimitExceededError("enough"), "failed"),
        (PricingNotConfiguredError("openai", "gpt-9"), "failed"),
        (ai.UsageLimitExceeded("too many"), "failed"),
    ],
)
def test_signals_of_a_sub_agent_go_through_its_parent(signal, status):
    """M-327: as they are; nothing of them reaches a model, and nothing is tried again."""

    def raise_it(task):
        raise signal

    model = script({"task": "t"}, "never")
    result, story = ran(make_agent_async(model, tools=[AgentTool(raise_it)]), config=StepConfig(max_retries=3))
    assert (result.status, len(model.asked)) == (status, 1)
    assert of(story, "agent_tool.raised")[0]["error"] == type(signal).__name__
    if status == "failed":
        assert str(signal).partition("\n")[0] in result.step_history[0].feedback


def asks(question):
    """A sub-agent that needs a person."""

    def sub(task):
        raise PausedException(question)

    return sub


NUMBERED = {"type": "object", "properties": {"password": {"type": "integer"}}}


@pytest.mark.parametrize("contract", ["input_schema", "output_schema"])
def test_a_refusal_is_told_without_the_value_of_a_secret(engine, contract):
    """A checker repeats the value; where it is says that it is to be hidden."""
    tool = AgentTool(lambda task: {"password": "tea-4-two"}, name="login", **{contract: NUMBERED})
    result = engine.run(Pipeline([Step("main", tool, config=ONCE)]), {"task": "t", "password": "tea-4-two"})
    story = json.dumps([event.data for event in engine.story(result.run_id) if event.name != "agent.input"])
    assert "password" in result.step_history[0].feedback
    assert "tea-4-two" not in result.step_history[0].feedback + story


HELPER = AgentTool(lambda task: f"did {task}", name="helper")
DECLARED = """
agents: {main: {model: test, tools: ["test_agent_tool:HELPER"]}}
steps: [{name: main, uses: agents.main}]
"""


def test_an_agent_of_a_blueprint_may_have_one(engine):
    result = engine.run(Pipeline.from_yaml_text(DECLARED), "go")
    began = [event.data["agent"] for event in engine.story(result.run_id) if event.name == "agent_tool.called"]
    assert json.loads(result.output)["run_helper"]["success"] is True
    assert len(began) == 1


def test_a_sub_agents_question_pauses_the_run_and_its_answer_is_the_agents(engine):
    """M-327: the step is performed again, and continues behind the question."""
    model = script({"task": "t"}, {"task": "t"}, json.dumps)
    agent = make_agent_async(model, tools=[AgentTool(asks("May it go out?"), name="asker")])
    pipeline = Pipeline([Step("main", agent, config=ONCE), Step("then", str.upper)], context_model=PipelineContext)
    run = engine.enqueue(pipeline, "go")
    engine.drain()
    assert [(each.message, each.step) for each in engine.approvals(run)] == [("May it go out?", "main")]
    engine.answer(run, "yes", actor="ana")
    engine.drain()
    result = engine.result(run)
    assert result.output == '{"SUCCESS": TRUE, "OUTPUT": "YES"}'
    assert result.final_pipeline_context.hitl_history[0].actor == "ana"
    assert result.final_pipeline_context.status is ContextState.COMPLETED
    assert len(model.asked) == 3


def test_a_second_question_finds_the_first_answered(engine):
    """M-327: two calls that ask the same get one answer each, of one tool or of two."""
    same, other = AgentTool(asks("Sure?"), name="same"), AgentTool(asks("Sure?"), name="other")
    given = []

    def respond(messages, info):
        told = [part.content["output"] for each in messages for part in each.parts if part.part_kind == "tool-return"]
        given.append(told)
        calls = ["run_same", "run_same", "run_other"][len(told) :]
        return ModelResponse([ToolCallPart(calls[0], {"task": "t"})] if calls else [TextPart("-".join(told))])

    agent = make_agent_async(FunctionModel(respond), tools=[same, other])
    run = engine.enqueue(Pipeline([Step("main", agent, config=ONCE)]), "go")
    asked = []
    for answer in ("a", "b", "c"):
        engine.drain()
        asked += [each.message for each in engine.approvals(run) if each.state == "open"]
        engine.answer(run, answer)
    engine.drain()
    assert engine.result(run).output == "a-b-c"
    assert asked == ["Sure?"] * 3


def test_an_answer_outlives_a_failure_after_it(engine):
    """M-327: the attempts that follow find it too."""
    turns = [{"task": "t"}, {"task": "t"}, lambda _: 1 / 0, {"task": "t"}, "done"]
    agent = make_agent_async(script(*turns), tools=[AgentTool(asks("Sure?"), name="asker")])
    run = engine.enqueue(Pipeline([Step("main", agent, config=StepConfig(max_retries=2))]), "go")
    engine.drain()
    engine.answer(run, "yes")
    engine.drain()
    assert engine.result(run).output == "done"
    assert [event.name for event in engine.story(run)].count("flujo.paused") == 1


def test_an_answered_step_reserves_again(engine):
    """ADR 24: its agents are called again, under the run's limits."""
    model = script({"task": "t"}, {"task": "t"}, "done")
    agent = make_agent_async(model, tools=[AgentTool(asks("Sure?"), name="asker")])
    config = StepConfig(expected_tokens=150, max_retries=0)
    limits = UsageLimits(total_tokens_limit=200)
    run = engine.enqueue(Pipeline([Step("main", agent, config=config)]), "go", limits=limits)
    engine.drain()
    engine.answer(run, "yes")
    engine.drain()
    result = engine.result(run)
    assert (result.status, len(model.asked)) == ("failed", 1)
    with pytest.raises(UsageLimitExceededError):
        result.raise_for_status()


def test_in_a_step_the_answer_is_the_steps_output(engine):
    """M-042: no one's tool, so no one is asked again."""
    run = engine.enqueue(Pipeline([Step("main", AgentTool(asks("Sure?"), name="asker"))]), "go")
    engine.drain()
    engine.answer(run, "yes")
    engine.drain()
    assert engine.result(run).output == "yes"


def test_an_error_of_a_sub_agent_is_its_parents_attempts():
    """C-37: one retry layer, the step's."""
    errors = [ValueError("Internal error")]

    def shaky(task):
        if errors:
            raise errors.pop()
        return "ok"

    agent = main_agent(AgentTool(shaky), {"task": "t"}, {"task": "again"}, "done")
    result, story = ran(agent, config=StepConfig(max_retries=3))
    assert (result.output, result.step_history[0].attempts) == ("done", 2)
    assert "ValueError: Internal error" in of(story, "flujo.retry")[0]["reason"]


def test_an_outage_of_a_sub_agents_provider_opens_its_own_breaker():
    """M-463: the calling model did answer."""

    def down(messages, info):
        raise ai.ModelHTTPError(503, "small")

    sub = make_agent_async(FunctionModel(down, model_name="small"), name="sub")
    settings = {"breakers": {"failures": 1}}
    _, story = ran(main_agent(AgentTool(sub), {"task": "t"}, "done"), settings=settings)
    assert ["small" in each["model"] for each in of(story, "flujo.breaker.opened")] == [True]


def test_the_runs_context_is_not_the_tools(engine):
    """M-328: neither given nor changed."""
    seen = []

    def look(task, *, context):
        seen.append(dict(context))
        context["note"] = "mine"
        return "ok"

    agent = main_agent(AgentTool(look), {"task": "t", "fact": 1}, "done")
    result = engine.run(Pipeline([Step("main", agent)]), "go", context={"note": "the run's"})
    assert seen == [{"fact": 1}]
    assert result.final_pipeline_context.note == "the run's"


def test_a_steps_input_is_the_call():
    result, story = ran(plan_tool(spy := Spy({"plan": 1})), RIGHT)
    assert result.output == {"plan": 1}
    assert spy.calls[0]["context"]["collected_information"] == FOUND
    assert len(of(story, "agent_tool.called")) == 1


def test_a_step_whose_input_is_refused_fails_at_once():
    """No one is there to read the refusal, and another try would not help."""
    result, _ = ran(plan_tool(spy := Spy()), {"task": "t"}, config=StepConfig(max_retries=3))
    assert not result.success
    assert "'target_url' is a required property" in result.step_history[0].feedback
    assert (spy.calls, result.step_history[0].attempts) == ([], 1)


def test_a_step_whose_output_is_refused_is_tried_again():
    outputs = [{"pages": 3}, {"count": 3}]

    def plan(task):
        return AgentAnswer(outputs.pop(0), Usage(6, 4, 1, 0.1))

    tool = AgentTool(plan, output_schema=COUNT)
    result, _ = ran(tool, "plan it", config=StepConfig(max_retries=3))
    assert (result.output, result.step_history[0].attempts) == ({"count": 3}, 2)
    assert result.total_tokens == 20


def test_a_steps_aros_reads_the_agents_output():
    """M-051: the step's `processing` is for who answers in the end."""
    tool = AgentTool(make_agent_async(script('Sure: {"count": "3"}'), name="sub"))
    block = {"aop": "full", "schema": COUNT, "coercion": {"allow": {"integer": ["str->int"]}}}
    result, _ = ran(tool, "count", processing=block)
    assert result.output == {"count": 3}


def test_an_input_without_names_is_refused():
    result, _ = ran(plan_tool(), [1])
    assert "takes named arguments" in result.step_history[0].feedback


def test_a_plan_with_another_contract_is_another_plan():
    """M-014: the fingerprint knows the tools."""
    from flujo_client.pipeline.compile import compile_plan

    def fingerprint(**rest):
        agent = make_agent_async("test", tools=[plan_tool(**rest)])
        return compile_plan(Pipeline([Step("main", agent)]), default_name="p").fingerprint

    assert fingerprint() == fingerprint()
    assert fingerprint() != fingerprint(input_schema=COUNT)


def test_each_answer_that_its_agents_were_given_is_remembered_with_the_success(engine):
    """U-36: of two questions both, in their order, each once; also when the attempt that first had them fails and is tried again."""
    tools = [AgentTool(asks(f"{name}?"), name=name) for name in ("first", "second")]
    tries = []

    def respond(messages, info):
        told = [part.content["output"] for each in messages for part in each.parts if part.part_kind == "tool-return"]
        if len(told) < len(tools):
            return ModelResponse([ToolCallPart(tools[len(told)].name, {"task": "t"})])
        tries.append(told)
        if len(tries) == 1:
            raise ConnectionError("away")
        return ModelResponse([TextPart("-".join(told))])

    agent = make_agent_async(FunctionModel(respond), tools=tools)
    step = Step("main", agent, config=StepConfig(max_retries=3))
    run = engine.enqueue(Pipeline([step], context_model=PipelineContext), "go")
    for answer, actor in (("a", "ana"), ("b", "bob")):
        engine.drain()
        engine.answer(run, answer, actor=actor)
    engine.drain()
    result = engine.result(run)
    context = result.final_pipeline_context
    assert (result.output, len(tries)) == ("a-b", 2)
    heard = [(each.question, each.answer, each.actor) for each in context.hitl_history]
    assert heard == [("first?", "a", "ana"), ("second?", "b", "bob")]
    assert [turn.content for turn in context.conversation_history] == ["first?", "a", "second?", "b"]
