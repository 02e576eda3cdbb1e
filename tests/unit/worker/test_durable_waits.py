"""Long waits of durable agents hold no worker: the attempt ends with a due row, uses up no try, and makes no call again."""

from collections import Counter

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Settings, Step, StepConfig
from flujo_worker.agents import AgentTool
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing import LocalEngine

DURABLE = StepConfig(durable=True, max_retries=1)


class InBackground(FunctionModel):
    """A model whose provider works in the background: it answers when it is asked for the third time, every so many seconds."""

    def __init__(self, engine, every_s=30.0, *, down_at=None):
        super().__init__(lambda *_: None, model_name="slow")
        self.engine, self.every_s, self.down_at = engine, every_s, down_at
        self.asked, self.cancelled = [], 0

    async def request(self, messages, settings, parameters):
        self.asked.append(self.engine.now)
        if len(self.asked) == self.down_at:
            raise ModelHTTPError(503, "slow")
        polled = sum(getattr(each, "state", None) == "suspended" for each in messages)
        if len(self.asked) - (self.down_at is not None and len(self.asked) > self.down_at) < 3:
            return ModelResponse(
                [], provider_response_id="job", state="suspended", usage=RequestUsage(input_tokens=polled)
            )
        return ModelResponse([TextPart("done")], provider_response_id="job", usage=RequestUsage(input_tokens=7))

    def continuation_delay(self, response):
        return self.every_s if response.state == "suspended" else None

    async def cancel_suspended_response(self, response):
        self.cancelled += 1


def pipeline(agent, config=DURABLE):
    return Pipeline([Step("ask", agent, config=config)], name="ask")


def closed(engine, run):
    return [(row.status, row.reason) for row in engine.history(run)]


def test_a_sleep_ends_the_attempt_and_the_next_one_goes_on_after_it():
    with LocalEngine() as engine:
        model, began = InBackground(engine), engine.now
        result = engine.run(pipeline(Agent(model, name="asker")), "go")
        assert (result.output, model.cancelled) == ("done", 0)
        assert [round(at - began) for at in model.asked] == [0, 30, 60]
        assert closed(engine, result.run_id) == [("failed", "waiting")] * 2 + [("succeeded", None)]
        waits = [each.data for each in engine.story(result.run_id) if each.name == "flujo.waiting"]
        assert [each["delay_seconds"] for each in waits] == [30.0] * 2
        assert "retry" not in str([each.name for each in engine.story(result.run_id)])


def test_a_wait_uses_up_no_try():
    with LocalEngine(Settings.model_validate({"retry": {"base_s": 0.1}})) as engine:
        model = InBackground(engine, down_at=3)
        result = engine.run(pipeline(Agent(model, name="asker")), "go")
        assert (result.output, len(model.asked)) == ("done", 4)


def test_short_sleeps_stay():
    with LocalEngine() as engine:
        model = InBackground(engine, every_s=0.01)
        result = engine.run(pipeline(Agent(model, name="asker")), "go")
        assert (result.output, closed(engine, result.run_id)) == ("done", [("succeeded", None)])


def test_the_job_of_an_attempt_that_fails_is_ended():
    with LocalEngine() as engine:
        model = InBackground(engine, down_at=2)
        run = engine.run(pipeline(Agent(model, name="asker"), StepConfig(durable=True, max_retries=0)), "go")
        assert (run.run_status, model.cancelled) == ("failed", 1)


def test_beside_an_agent_that_sleeps_tools_end_first():
    """A sub-agent sleeps: the tools beside it are called once."""
    called = Counter()

    async def look() -> str:
        called["look"] += 1
        return "seen"

    def ask(messages, info):
        if len(messages) > 1:
            return ModelResponse([TextPart("all seen")])
        calls = [("run_helper", {"task": "help"}), ("look", {}), ("look", {})]
        return ModelResponse([ToolCallPart(*call, tool_call_id=f"c{n}") for n, call in enumerate(calls)])

    with LocalEngine() as engine:
        model = InBackground(engine)
        tools = [look, AgentTool(Agent(model, name="helper")).as_tool()]
        result = engine.run(pipeline(Agent(FunctionModel(ask), name="asker", tools=tools)), "go")
        assert (result.output, len(model.asked), called["look"]) == ("all seen", 3, 2)


@pytest.mark.parametrize("outages", [0, 3])
def test_requests_wait_for_their_turns_without_a_worker_and_replays_have_none(outages):
    """Four requests of 12 a minute, and those that fail: each waits five seconds; those on record wait for nothing."""
    limits = {"slow_start_s": 0, "models": {"function:large": {"requests_per_minute": 12}}}
    left, sent = [outages], []

    def answer(messages, info):
        sent.append(engine.now)
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        if turn == 3 and left[0]:
            left[0] -= 1
            raise ModelHTTPError(503, "large")
        call = ToolCallPart("look", {"turn": turn}, tool_call_id=f"c{turn}")
        return ModelResponse([call if turn < 3 else TextPart("done")], usage=RequestUsage(input_tokens=1))

    def look(turn: int) -> int:
        return turn

    agent = Agent(FunctionModel(answer, model_name="large"), name="asker", tools=[look])
    with LocalEngine(Settings.model_validate({"rate_limits": limits, "retry": {"base_s": 0.1}})) as engine:
        result = engine.run(pipeline(agent, StepConfig(durable=True, max_retries=3)), "go")
        assert (result.output, len(sent)) == ("done", 4 + outages)
        assert ("failed", "waiting") in closed(engine, result.run_id)
        assert max(sent) - min(sent) <= (3 + outages) * 5 * 1.5


def test_in_a_tool_an_agent_sleeps_where_it_is(monkeypatch):
    """The tool would be called again, and a person be asked about its effect."""
    monkeypatch.setattr("flujo_worker.durable.journal.LEAVE_S", 0.05)
    called = []

    def ask(messages, info):
        if len(messages) > 1:
            return ModelResponse([TextPart("sent")])
        return ModelResponse([ToolCallPart("send", {}, tool_call_id="c")])

    with LocalEngine() as engine:
        model = InBackground(engine, every_s=0.06)
        inner = Agent(model, name="helper", capabilities=[FlujoDurability()])

        async def send() -> str:
            called.append(1)
            return (await inner.run("help")).output

        tool = Tool(send, metadata={"flujo": {"effect": "once"}})
        result = engine.run(pipeline(Agent(FunctionModel(ask), name="asker", tools=[tool])), "go")
        assert (result.output, len(called), len(model.asked)) == ("sent", 1, 3)
        assert closed(engine, result.run_id) == [("succeeded", None)]


def test_branches_wait_beside_each_other():
    with LocalEngine() as engine:
        models = {name: InBackground(engine) for name in "abc"}
        branches = {name: Step("ask", Agent(model, name=name), config=DURABLE) for name, model in models.items()}
        result = engine.run(Pipeline([Step.parallel("fan", branches)]), "go")
        assert result.output == dict.fromkeys("abc", "done")
        assert [len(model.asked) for model in models.values()] == [3, 3, 3]
