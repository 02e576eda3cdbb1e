"""What durable agents spend: an agent stops at the call that would pass a limit, and totals agree however an attempt ends."""

import asyncio

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import PausedException
from flujo_worker.agents import AgentTool
from flujo_worker.testing import LocalEngine

TURNS = 12
EACH = 50


class Scripted:
    """A model that takes twelve turns with a tool each, and fails or asks once where it is told to."""

    def __init__(self, *, down_at=0, pauses_at=0, turns=TURNS, reads=10):
        self.asked, self._down_at, self._pauses_at, self._turns, self._reads = [], down_at, pauses_at, turns, reads
        self.tools = 0
        self.agent = Agent(
            FunctionModel(self.answer), name="scripted", tools=[self.look], model_settings={"max_tokens": 40}
        )

    def answer(self, messages, info):
        turn = 1 + sum(isinstance(each, ModelResponse) for each in messages)
        self.asked.append(turn)
        if self.asked.count(turn) == 1 and turn == self._down_at:
            raise ModelHTTPError(503, "scripted", "overloaded")
        usage = RequestUsage(input_tokens=self._reads, output_tokens=40)
        part = ToolCallPart("look", {"turn": turn}, tool_call_id=f"c{turn}") if turn < self._turns else TextPart("done")
        return ModelResponse([part], usage=usage)

    async def look(self, turn: int) -> int:
        self.tools += 1
        if turn == self._pauses_at and self.tools == turn:
            raise PausedException("May I?")
        return turn

    def pipeline(self, **config):
        config = {"durable": True, "max_retries": 2} | config
        return Pipeline([Step("research", self.agent, config=StepConfig(**config))], name="research")


def limited(tokens):
    return UsageLimits(total_tokens_limit=tokens)


def spent(engine, run_id):
    """Return the tokens of a run as a result, its rows and its budget have them; they must agree."""
    tables, result = engine.stores.tables, engine.result(run_id, check=False)
    [attempts, budget] = sum(each.tokens for each in engine.history(run_id)), tables.budgets[f"run:{run_id}"]
    assert budget.reserved.tokens == 0
    assert {result.total_tokens, attempts, budget.spent.tokens} == {result.total_tokens}
    return result.total_tokens


def test_an_agent_stops_at_the_call_that_would_pass_the_limit():
    scripted = Scripted()
    with LocalEngine() as engine:
        result = engine.run(scripted.pipeline(), "go", limits=limited(5 * EACH + 20))
        assert spent(engine, result.run_id) == 5 * EACH
        [attempt] = engine.history(result.run_id)
    assert (result.run_status, attempt.status) == ("failed", "failed")
    assert "Insufficient quota: Token limit of 270 exceeded" in result.error.message
    assert scripted.asked == [1, 2, 3, 4, 5]


def test_an_agent_whose_answer_passed_the_limit_asks_no_more():
    scripted = Scripted(reads=60)
    with LocalEngine() as engine:
        result = engine.run(scripted.pipeline(), "go", limits=limited(250))
        assert spent(engine, result.run_id) == 300
    assert result.error.message == "Token limit of 250 exceeded. Current tokens: 300"
    assert scripted.asked == [1, 2, 3]


def test_within_a_limit_it_reserves_for_one_request_at_a_time():
    scripted = Scripted()
    with LocalEngine() as engine:
        for _ in range(2):  # what the first has cost is no reason to reserve for twelve requests
            result = engine.run(scripted.pipeline(), "go", limits=limited(TURNS * EACH + 20))
            assert result.run_status == "succeeded", result.error
            assert spent(engine, result.run_id) == TURNS * EACH


@pytest.mark.parametrize("limits", [None, limited(10_000)])
@pytest.mark.parametrize(("disturbance", "again"), [({}, 0), ({"down_at": 11}, 1), ({"pauses_at": 7}, 0)])
def test_however_an_agent_goes_on_each_answer_is_paid_once(limits, disturbance, again):
    scripted = Scripted(**disturbance)
    with LocalEngine() as engine:
        result = engine.run(scripted.pipeline(), "go", limits=limits)
        if result.run_status == "paused":
            result = engine.answer(result.run_id, 7)
        assert result.run_status == "succeeded", result.error
        paid = (len(scripted.asked) - again) * EACH
        assert result.total_tokens == sum(each.tokens for each in engine.history(result.run_id)) == paid
        if limits is not None:
            assert spent(engine, result.run_id) == paid
    assert len(scripted.asked) == len(set(scripted.asked)) + again


def test_a_call_that_is_not_durable_is_settled_by_its_outcome():
    scripted = Scripted()
    with LocalEngine() as engine:
        result = engine.run(scripted.pipeline(durable=False), "go", limits=limited(10_000))
        assert spent(engine, result.run_id) == TURNS * EACH


def test_requests_under_way_are_answered_and_settled_before_the_attempt_stops():
    """Three agents at once, as tools: two requests fit, and the third ends the attempt."""
    asked, answered = [], []

    async def slow(messages, info):
        asked.append(len(asked))
        await asyncio.sleep(0.1)
        answered.append(len(asked))
        return ModelResponse([TextPart("done")], usage=RequestUsage(input_tokens=10, output_tokens=40))

    def call_three(messages, info):
        parts = [ToolCallPart("run_inner", {"task": f"look {n}"}, tool_call_id=f"c{n}") for n in range(3)]
        return ModelResponse(parts, usage=RequestUsage(input_tokens=10, output_tokens=40))

    settings = {"max_tokens": 40}
    tool = AgentTool(Agent(FunctionModel(slow), name="inner", model_settings=settings)).as_tool()
    outer = Agent(FunctionModel(call_three), name="outer", tools=[tool], model_settings=settings)
    with LocalEngine() as engine:
        step = Step("research", outer, config=StepConfig(durable=True))
        result = engine.run(Pipeline([step], name="research"), "go", limits=limited(160))
        assert spent(engine, result.run_id) == 3 * EACH
    assert "Insufficient quota" in result.error.message
    assert (len(asked), len(answered)) == (2, 2)
