"""What tools of durable agents ask people: one question for all that wait, its answer at the very call, and no try used up."""

import asyncio
import re
from collections import Counter
from datetime import timedelta

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelHTTPError
from pydantic_ai.external_events import wait_for_external_event
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolResults, Tool, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset

from flujo_client import AgentProcessors, Pipeline, Step, StepConfig, current_unit
from flujo_client.config.manager import Settings
from flujo_client.contract.approval import read_token, verdict
from flujo_client.errors import PausedException, PipelineError, ResumeError
from flujo_worker import AgentTool
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing import LocalEngine


class Script:
    """A model that calls these tools, a turn after the other, and ends with all that they returned; it counts what is really called."""

    def __init__(self, *turns, down=()):
        self.turns, self.down, self.calls = turns, list(down), Counter()

    async def __call__(self, messages, info):
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        self.calls[f"model{turn}"] += 1
        if turn in self.down:
            self.down.remove(turn)
            raise ModelHTTPError(503, "scripted", "overloaded")
        if turn < len(self.turns):
            calls = [ToolCallPart(name, args, tool_call_id=f"c{n}") for n, (name, args) in enumerate(self.turns[turn])]
            return ModelResponse(calls)
        returns = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
        return ModelResponse([TextPart("; ".join(str(part.content) for part in returns))])

    def agent(self, *tools, name="agent", **options):
        return Agent(FunctionModel(self), name=name, tools=tools, **options)

    def counted(self, result=None, wait_s=0.0, name="send", **metadata):
        """Make a tool that counts its calls by its argument."""

        async def tool(to: str) -> str:
            self.calls[f"{name} {to}"] += 1
            await asyncio.sleep(wait_s)
            if isinstance(result, Exception):
                raise result
            return f"{name} {to}"

        return Tool(tool, name=name, **({"metadata": {"flujo": metadata}} if metadata else {}))


def approved(tool):
    tool.requires_approval = True
    return tool


def step(agent, **config):
    given = {"durable": True, "max_retries": 1} | config
    return Pipeline([Step("act", agent, config=StepConfig(**given))])


@pytest.fixture
def engine():
    with LocalEngine() as engine:
        yield engine


def asked(engine, pipeline):
    """Run to the question; return the run and the question."""
    run = engine.enqueue(pipeline, "go")
    engine.drain()
    [question] = engine.approvals(run)
    return run, question


def test_an_approval_is_asked_with_the_call_and_goes_on_at_it(engine):
    script = Script([("send", {"to": "ana", "password": "hunter2"})])

    def send(to: str, password: str) -> str:
        script.calls["send"] += 1
        return f"sent to {to}"

    run, question = asked(engine, step(script.agent(Tool(send, requires_approval=True))))
    assert question.message.startswith("May send be called?")
    assert '"to": "ana"' in question.message
    assert "hunter2" not in question.message
    assert verdict(question.schema, approved=True) is True
    assert engine.answer(run, True).output == "sent to ana"
    assert script.calls == {"model0": 1, "send": 1, "model1": 1}


def test_all_calls_of_a_turn_are_one_question_and_wrong_answers_are_refused_by_name(engine):
    script = Script([("send", {"to": "ana"}), ("send", {"to": "bo"}), ("look", {"id": 7}), ("free", {"to": "x"})])
    look = ExternalToolset([ToolDefinition(name="look")], id="elsewhere")
    agent = script.agent(approved(script.counted()), script.counted(name="free"), toolsets=[look])
    run, question = asked(engine, step(agent))
    assert list(question.schema["properties"]) == ["c0", "c1", "c2"]
    assert question.message.startswith("3 calls wait for an answer.")
    with pytest.raises(ResumeError, match="does not fit"):
        engine.answer(run, True)
    answered = {"c0": True, "c1": "bo is on leave", "c2": {"found": [1, 2]}}
    result = engine.answer(run, answered)
    assert result.output == "send ana; bo is on leave; {'found': [1, 2]}; free x"
    assert script.calls == {"model0": 1, "free x": 1, "send ana": 1, "model1": 1}


def test_only_what_was_answered_wrong_is_asked_again(engine):
    script = Script([("send", {"to": "ana"}), ("send", {"to": "bo"})])
    run, _ = asked(engine, step(script.agent(approved(script.counted()))))
    engine.answer(run, {"c0": {"approved": "perhaps"}, "c1": True})
    [question] = engine.approvals(run)
    assert question.refused.startswith("c0: must be true, false")
    assert engine.answer(run, {"approved": False, "why": "no"}).output == "no; send bo"
    assert script.calls == {"model0": 1, "send bo": 1, "model1": 1}


def test_a_pause_uses_up_no_try(engine):
    script = Script([("send", {"to": "ana"})], [("send", {"to": "bo"})], down=[1, 2])
    pipeline = step(script.agent(approved(script.counted())), max_retries=2)
    run, _ = asked(engine, pipeline)
    engine.answer(run, True)
    result = engine.answer(run, True)
    assert result.output == "send ana; send bo"
    reasons = ["paused", "error", "paused", "error", None]
    assert [each.reason for each in engine.history(run)] == reasons
    assert script.calls == {"model0": 1, "model1": 2, "model2": 2, "send ana": 1, "send bo": 1}


def test_tools_that_ask_in_the_middle_of_their_call_go_on(engine):
    script = Script([("pay", {"amount": 500}), ("fetch", {})])

    def pay(ctx: RunContext, amount: int) -> str:
        script.calls["pay"] += 1
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"because": "more than 100"})
        return f"paid {amount}"

    def fetch() -> str:
        raise CallDeferred

    pay_tool = Tool(pay, metadata={"flujo": {"effect": "once"}})
    run, question = asked(engine, step(script.agent(pay_tool, fetch)))
    assert "more than 100" in question.message
    assert engine.answer(run, {"c0": True, "c1": "fetched"}).output == "paid 500; fetched"
    assert script.calls == {"model0": 1, "pay": 2, "model1": 1}


def sub_agents(wait_s=0.0):
    inner = Script([("send", {"to": "ana"})])
    middle = inner.agent(approved(inner.counted()), name="mailer")
    outer = Script([("run_mailer", {"task": "a"}), ("run_mailer", {"task": "b"}), ("slow", {"to": "x"})])
    slow = outer.counted(wait_s=wait_s, name="slow")
    return inner, outer, outer.agent(AgentTool(middle).as_tool(), slow, name="boss")


def test_sub_agents_that_ask_at_once_ask_one_question_after_the_tools_beside_them_have_settled(engine):
    inner, outer, agent = sub_agents(wait_s=0.2)
    run, question = asked(engine, step(agent))
    assert list(question.schema["properties"]) == ["c0", "c0-2"]
    assert verdict(question.schema, approved=True) == {"c0": True, "c0-2": True}
    result = engine.answer(run, {"c0": True, "c0-2": "no"})
    assert "send ana" in result.output
    assert "no" in result.output
    assert outer.calls == {"model0": 1, "slow x": 1, "model1": 1}
    assert inner.calls == {"model0": 2, "send ana": 1, "model1": 2}


def test_what_waits_in_the_turn_of_a_sub_agent_that_asks_is_the_same_question(engine):
    inner, outer = Script([("send", {"to": "ana"})]), Script()
    middle = inner.agent(approved(inner.counted()), name="mailer")
    outer.turns = [[("run_mailer", {"task": "a"}), ("free", {"to": "x"}), ("pay", {"to": "b"}), ("put_off", {})]]

    async def put_off() -> str:
        await asyncio.sleep(0.1)
        raise CallDeferred(metadata={"job": 7})

    tools = [AgentTool(middle).as_tool(), outer.counted(name="free"), approved(outer.counted(name="pay")), put_off]
    run, question = asked(engine, step(outer.agent(*tools, name="boss")))
    assert list(question.schema["properties"]) == ["c0", "c2", "c3"]
    assert '"job": 7' in question.message
    result = engine.answer(run, {"c0": True, "c2": True, "c3": "later"})
    assert "send ana" in result.output
    assert result.output.endswith("free x; pay b; later")
    assert outer.calls == {"model0": 1, "free x": 1, "pay b": 1, "model1": 1}


def test_an_agent_that_a_plain_tool_runs_goes_on_at_its_call_too(engine):
    inner, outer = Script([("send", {"to": "ana"})]), Script([("delegate", {"to": "mailer"})])
    middle = inner.agent(approved(inner.counted()), name="mailer", capabilities=[FlujoDurability()])

    async def delegate(to: str) -> str:
        return str((await middle.run(to)).output)

    run, question = asked(engine, step(outer.agent(delegate, name="boss")))
    assert question.message.startswith("May send be called?")
    assert engine.answer(run, True).output == "send ana"
    assert outer.calls == {"model0": 1, "model1": 1}
    assert inner.calls == {"model0": 1, "send ana": 1, "model1": 1}


def test_a_question_shows_something_of_each_call_however_many_wait(engine):
    turn = [("send", {"to": f"{n} {'x' * 2000}"}) for n in range(40)]
    _, question = asked(engine, step(Script(turn).agent(approved(Script().counted()))))
    assert all(f"c{n}: May send be called?" in question.message for n in range(40))
    assert list(question.schema["properties"]) == [f"c{n}" for n in range(40)]


def test_a_question_that_expires_denies_the_call_and_says_so(engine):
    script = Script([("send", {"to": "ana"})])
    run, question = asked(engine, step(script.agent(approved(script.counted(expires_s=60)))))
    assert question.expires_at is not None
    engine.pass_time(61)
    assert engine.result(run).output == "Nobody has allowed this call in time."
    assert script.calls == {"model0": 1, "model1": 1}


def request_input(told, at_once=None, **options):
    script = Script([("send", {"to": "ana"})])

    def ask(ctx, requests, token):
        told.append(token)
        return at_once

    agent = script.agent(approved(script.counted()), capabilities=[RequestInput(ask, **options)])
    return script, step(agent)


def test_request_input_is_told_a_token_once_and_gets_what_it_is_answered_with(engine):
    told = []
    script, pipeline = request_input(told)
    run, question = asked(engine, pipeline)
    assert told == [question.key]
    assert engine.answer(run, {"approvals": {"c0": True}}).output == "send ana"
    assert told == [question.key]
    assert script.calls == {"model0": 1, "send ana": 1, "model1": 1}


def test_with_keys_the_token_is_signed_and_is_on_no_record():
    told, settings = [], Settings(signing_keys={"now": "a secret of some length"})
    _, pipeline = request_input(told)
    with LocalEngine(settings) as engine:
        run, question = asked(engine, pipeline)
        assert read_token(told[0], settings.keys(), now=0.0) == (run, question.key)
        units = engine.stores.units.recorded(run, [":act", ":act:1"])
    assert len(units) == 2
    assert not any(told[0].encode() in bytes(each.answer) for each in units)


def test_a_token_whose_question_was_never_asked_is_told_anew(engine):
    told, script = [], Script([("fails", {}), ("wait", {})])
    broken = [ConnectionError("lost")]

    async def wait() -> str:
        await asyncio.sleep(0.05)
        return str(await wait_for_external_event("review", ask=told.append))

    async def fails() -> str:
        await asyncio.sleep(1.0)
        if broken:
            raise broken.pop()
        return "not any more"

    agent = script.agent(fails, Tool(wait, metadata={"flujo": False}))
    run, question = asked(engine, step(agent, retry_bugs=True))
    assert len(told) == 2  # the first attempt failed, by the tool beside it
    assert told[-1] == question.key
    assert engine.answer(run, "good").output == "not any more; good"


def test_request_input_that_answers_at_once_asks_nobody_and_one_whose_time_is_over_denies(engine):
    _, pipeline = request_input([], at_once=DeferredToolResults(approvals={"c0": True}))
    assert engine.run(pipeline, "go").output == "send ana"
    _, pipeline = request_input([], timeout=timedelta(seconds=60))
    run, _ = asked(engine, pipeline)
    engine.pass_time(61)
    assert engine.result(run).output.startswith("No decision on this tool call arrived")


def test_a_tool_that_is_no_unit_waits_for_an_event_and_begins_again_from_its_beginning(engine):
    script, told = Script([("wait", {})]), []

    async def wait() -> str:
        told.append("begun")
        return str(await wait_for_external_event("review", ask=told.append))

    run, question = asked(engine, step(script.agent(Tool(wait, metadata={"flujo": False}))))
    assert question.message == "review waits for an answer."
    assert engine.answer(run, "good").output == "good"
    assert told == ["begun", question.key, "begun"]
    assert script.calls == {"model0": 1, "model1": 1}


def test_a_tool_that_raises_a_pause_itself_asks_for_the_step(engine):
    script = Script([("doubt", {}), ("send", {"to": "ana"})])

    def doubt() -> str:
        raise PausedException("what now?")

    run, question = asked(engine, step(script.agent(doubt, approved(script.counted()))))
    assert question.message == "what now?"
    assert engine.answer(run, "done by hand").output == "done by hand"
    assert script.calls == {"model0": 1}


def test_a_once_effect_whose_outcome_is_not_known_asks_a_person(engine):
    script = Script([("send", {"to": "ana"})])
    agent = script.agent(script.counted(ConnectionError("lost"), effect="once"))
    run, question = asked(engine, step(agent, retry_bugs=True))
    assert question.message.startswith("Has send happened?")
    engine.answer(run, {"result": "a", "again": True})
    [question] = engine.approvals(run)
    assert 'must be either {"result": …}' in question.refused
    assert engine.answer(run, {"result": "sent by hand"}).output == "sent by hand"
    assert script.calls == {"model0": 1, "send ana": 1, "model1": 1}


def test_a_once_effect_that_is_to_be_made_again_asks_about_the_next_time_too(engine):
    script = Script([("send", {"to": "ana"})])
    agent = script.agent(script.counted(ConnectionError("lost"), effect="once"))
    run, _ = asked(engine, step(agent, retry_bugs=True, max_retries=5))
    engine.answer(run, {"again": True})
    assert script.calls["send ana"] == 2
    assert engine.answer(run, {"result": "sent by hand"}).output == "sent by hand"


@pytest.mark.parametrize("effect", ["keyed", "once"])
def test_a_settled_effect_is_not_repeated_after_a_refused_answer_nor_is_its_approval(engine, effect):
    script, judged = Script([("send", {"to": "ana"})]), []

    def refuse_once(output):
        judged.append(output)
        if len(judged) == 1:
            raise ValueError("another one, please")
        return output

    agent = script.agent(approved(script.counted(effect=effect)))
    processors = AgentProcessors(output_processors=[refuse_once])
    accepted = Step("act", agent, processors=processors, config=StepConfig(durable=True, max_retries=2))
    run, _ = asked(engine, Pipeline([accepted]))
    assert engine.answer(run, True).output == "send ana"
    assert script.calls == {"model0": 2, "send ana": 1, "model1": 2}


def test_a_keyed_effect_keeps_its_id_in_every_attempt(engine):
    script, ids = Script([("send", {})]), []

    def send() -> str:
        ids.append(current_unit().effect_id)
        if len(ids) == 1:
            raise ConnectionError("lost")
        return "sent"

    agent = script.agent(Tool(send, metadata={"flujo": {"effect": "keyed"}}))
    assert engine.run(step(agent, max_retries=2, retry_bugs=True), "go").output == "sent"
    assert len(ids) == 2
    assert len(set(ids)) == 1


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"effect": "twice"}, "the effect 'twice'"),
        ({"efect": "once"}, "{'efect': 'once'}; known are effect"),
        ({"expires_s": -1}, "expires_s -1"),
    ],
)
def test_a_tool_that_declares_what_means_nothing_is_refused_by_name_before_any_request(engine, metadata, why):
    script = Script([("send", {"to": "ana"})])
    tool = script.counted(**metadata)
    with pytest.raises(PipelineError, match=f"tool 'send' declares {re.escape(why)}"):
        engine.run(step(script.agent(tool)), "go")
    seen_late = script.agent()
    seen_late.toolset(lambda ctx: FunctionToolset([tool], id="inner"), id="late")
    result = engine.run(step(seen_late, max_retries=3), "go")
    assert f"tool 'send' declares {why}" in result.error.message
    assert script.calls == {}


def test_two_tools_that_fail_at_once_and_one_that_waits_for_the_other_hang_nothing(engine):
    script = Script([("a", {"to": "x"}), ("b", {"to": "x"}), ("slow", {"to": "x"})])
    fails = [script.counted(ConnectionError("lost"), name=name) for name in "ab"]
    slow = script.counted(wait_s=0.2, name="slow")
    engine.run(step(script.agent(*fails, slow), retry_bugs=True), "go")
    assert script.calls == {"model0": 1, "a x": 2, "b x": 2, "slow x": 1}

    event, waited = asyncio.Event(), Script([("fails", {"to": "x"}), ("waits", {})])

    async def waits() -> str:
        await event.wait()
        return "never"

    agent = waited.agent(waited.counted(ConnectionError("lost"), name="fails"), waits)
    result = engine.run(step(agent, timeout_s=1.0), "go")
    assert "lost" in result.error.message
