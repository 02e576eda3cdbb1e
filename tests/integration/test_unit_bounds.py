"""What a durable step may have on record, what cannot be recorded, what has changed since it was, and what nothing asks for any more."""

from hashlib import sha256

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_worker.agents.durability import FlujoDurability

DURABLE = StepConfig(durable=True, max_retries=2, backoff=Backoff(base_s=0.001))
LARGE = "".join(sha256(bytes([n])).hexdigest() for n in range(188))


class Scripted:
    """An agent that calls its tool so many times, and is down at some requests."""

    def __init__(self, result="ok", *, turns=1, down=(), before=None):
        self.result, self.turns, self.down, self.before = result, turns, set(down), before
        self.requests = self.calls = 0
        self.agent = Agent(FunctionModel(self.answer), name="a")
        self.agent.tool_plain(name="look")(self.look)

    def look(self, turn: int):
        self.calls += 1
        return self.result() if callable(self.result) else self.result

    async def answer(self, messages, info):
        self.requests += 1
        if self.requests in self.down:
            if self.before is not None:
                self.before()
            raise ModelHTTPError(503, "scripted", "overloaded")
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        if turn < self.turns:
            return ModelResponse([ToolCallPart("look", {"turn": turn}, tool_call_id=f"c{turn}")])
        return ModelResponse([TextPart("done")])

    def run(self, engine, config=DURABLE):
        return engine.run(Pipeline([Step("ask", self.agent, config=config)], name="bounds"), "hi")


def events(engine, name):
    [run] = engine.stores.units._t.runs
    return [each.data for each in engine.story(run) if each.name == name]


class Custom:
    """No form as JSON."""


def test_a_result_that_cannot_be_recorded_names_tool_and_path_and_is_not_retried(engine):
    agent = Scripted({"found": [1, Custom()]})
    result = agent.run(engine)
    assert agent.calls == 1
    assert "step 'ask'" in result.error.message
    assert "look" in result.error.message
    assert "found" in result.error.message


@pytest.mark.engine(limits={"step_units": 4})
def test_a_step_with_too_many_units_fails_before_the_next_is_paid_and_is_not_retried(engine):
    agent = Scripted(turns=9)
    result = agent.run(engine)
    assert (agent.requests, agent.calls) == (2, 2)
    assert "step 'ask' has more than 4 units" in result.error.message
    assert "limits.step_units" in result.error.suggestion


@pytest.mark.engine(limits={"step_units_bytes": 30_000})
def test_a_step_with_too_many_bytes_of_results_fails_and_names_the_tool(engine):
    agent = Scripted(LARGE, turns=9)
    result = agent.run(engine)
    assert agent.calls == 3
    assert "results of more than 30,000 bytes" in result.error.message
    assert "look" in result.error.message


@pytest.mark.engine(limits={"snapshot_max_bytes": 70_000})
def test_a_result_that_is_too_large_by_itself_fails(engine):
    agent = Scripted(LARGE * 10)
    result = agent.run(engine)
    assert agent.calls == 1
    assert "a result of 120," in result.error.message


@pytest.mark.engine(limits={"snapshot_inline_bytes": 100})
def test_a_large_result_is_stored_apart_and_read_back(engine):
    agent = Scripted(LARGE, turns=2, down=[3])
    result = agent.run(engine)
    assert (result.output, agent.calls, agent.requests) == ("done", 2, 4)
    units = engine.stores.units._t.units.values()
    assert all(each.answer.is_reference for each in units if "call_tool" in each.operation)


@pytest.mark.engine(limits={"snapshot_inline_bytes": 100})
def test_answers_that_a_failover_has_lost_are_asked_for_once_more(engine):
    agent = Scripted(lambda: f"{LARGE}{agent.calls}", turns=2, down=[3, 6])
    agent.before = lambda: agent.requests > 3 or engine.stores.blobs._t.blobs.clear()
    result = agent.run(engine)
    assert (result.output, agent.calls, agent.requests) == ("done", 4, 7)  # and the second outage repeats nothing
    # Three whose answers are lost; and the request that was down, where its announcement, for which no one waits, came before the retry.
    assert len(events(engine, "unit.possibly_done")) in (3, 4)


def test_a_request_that_differs_from_the_recorded_one_says_what_changed_first(engine):
    agent = Scripted(turns=2, down=[3])
    agent.before = lambda: setattr(agent, "prefix", "other")
    strict = DURABLE.model_copy(update={"fingerprint": "strict"})

    @agent.agent.instructions
    def now() -> str:
        return getattr(agent, "prefix", "first")

    result = agent.run(engine, strict)
    assert result.output == "done"
    [changed] = events(engine, "unit.changed")
    assert changed["first"] == "instructions"
    assert [line[:14] for line in changed["changed"]] == ["-instructions:", "+instructions:"]
    [unasked] = events(engine, "unit.unasked")
    assert unasked == {"operations": {"a__model.request": unasked["count"]}, "count": unasked["count"]}
    assert unasked["count"] in (
        2,
        3,
    )  # the request that was down counts if its announcement, for which no one waits, came before the retry


def test_nothing_is_told_of_an_attempt_that_goes_on_where_it_was(engine):
    agent = Scripted(turns=2, down=[2, 4])
    assert agent.run(engine).output == "done"
    assert events(engine, "unit.changed") == events(engine, "unit.unasked") == []


def test_units_inside_a_recorded_tool_are_not_missed(engine):
    inner = Scripted(turns=1)
    outer = Scripted(turns=1, down=[2])

    async def delegate(turn: int) -> str:
        return (await inner.agent.run("inside")).output

    outer.agent = Agent(FunctionModel(outer.answer), name="outer")
    outer.agent.tool_plain(name="look")(delegate)
    inner.agent = Agent(FunctionModel(inner.answer), name="inner", capabilities=[FlujoDurability()])
    inner.agent.tool_plain(name="look")(inner.look)
    assert outer.run(engine).output == "done"
    assert (inner.requests, inner.calls, outer.requests) == (2, 1, 3)
    assert events(engine, "unit.unasked") == []
