"""Durable steps ask their model requests in batches: pooled over runs, merged once, and live when no batch answers."""

import asyncio
from dataclasses import replace

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.batch import BatchResult
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Step, StepConfig, UsageLimits
from flujo_client.contract.processing import BatchSettings, resolve
from flujo_client.errors import BlueprintError, PipelineError
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing import LocalEngine

DURABLE = StepConfig(durable=True, max_retries=0)
BATCH = {"batch": {"wait_s": 30, "poll_s": 60, "deadline_s": 3600}}


class Provider(FunctionModel):
    """A model whose batches end when they have been asked about so many times; what it is told to leave out expires."""

    def __init__(self, polls=2, *, drops=False, refusals=()):
        super().__init__(self.said, model_name="scripted")
        self.polls, self.drops, self.refusals = polls, drops, list(refusals)
        self.live, self.batches, self.asked = 0, [], 0

    def said(self, messages, info):
        if info.function_tools and len(messages) == 1:
            return ModelResponse([ToolCallPart("look", {"place": 1})])
        return ModelResponse([TextPart("done")])

    async def request(self, *given):
        self.live += 1
        return await super().request(*given)

    async def batch_create(self, requests):
        if self.refusals:
            raise ModelHTTPError(self.refusals.pop(0), "scripted")
        self.batches.append(len(requests))
        batch = await super().batch_create(requests)
        self.live -= len(requests)  # it asks itself
        return replace(batch, status="in_progress")

    async def batch_status(self, batch):
        self.asked += 1
        return await super().batch_status(batch) if self.asked >= self.polls else batch

    async def batch_results(self, batch):
        results = await super().batch_results(batch)
        expired = [BatchResult(custom_id=each.custom_id, status="expired") for each in results]
        return expired if self.drops else results


def pipeline(model, processing=BATCH, **agent):
    return Pipeline(
        [Step("ask", Agent(model, name="asker", **agent), config=DURABLE, processing=processing)], name="ask"
    )


def test_requests_of_two_runs_are_one_batch_and_hold_no_worker():
    model = Provider()
    with LocalEngine() as engine:
        asking = pipeline(model)
        runs = [engine.enqueue(asking, text) for text in ("a", "b")]
        engine.drain()
        assert [engine.result(run).output for run in runs] == ["done"] * 2
        assert (model.live, model.batches, model.asked) == (0, [2], 2)
        for run in runs:
            story = [(each.name, each.data.get("requests")) for each in engine.story(run)]
            assert ("unit.possibly_done", None) not in story
            assert [row.reason for row in engine.history(run)].count("waiting") == len(engine.history(run)) - 1


def test_each_turn_of_an_agent_is_a_batch():
    model, called = Provider(), []

    def look(place: int) -> int:
        called.append(place)
        return place

    with LocalEngine() as engine:
        assert engine.run(pipeline(model, tools=[look]), "a").output == "done"
    assert (model.live, model.batches, called) == (0, [1, 1], [1])


def test_what_a_batch_does_not_answer_is_asked_live():
    model = Provider(drops=True)
    with LocalEngine() as engine:
        result = engine.run(pipeline(model), "a")
        assert (result.output, model.live, model.batches) == ("done", 1, [1])
        assert [each.name for each in engine.story(result.run_id)].count("batch.live") == 1


def test_past_its_deadline_a_request_is_asked_live():
    model = Provider(polls=10_000)
    with LocalEngine() as engine:
        began = engine.now
        assert engine.run(pipeline(model), "a").output == "done"
        assert (model.live, model.batches) == (1, [1])
        assert 3600 <= engine.now - began < 3700


def test_a_batch_that_the_provider_refuses_is_asked_live():
    model = Provider(refusals=[400])
    with LocalEngine() as engine:
        result = engine.run(pipeline(model), "a")
        assert (result.output, model.live, model.batches) == ("done", 1, [])
        [failed] = [each.data for each in engine.story(result.run_id) if each.name == "batch.failed"]
        assert (failed["status"], failed["refused"]) == (400, True)


def test_after_an_outage_a_batch_is_submitted_again():
    model = Provider(refusals=[503, 429])
    with LocalEngine() as engine:
        assert engine.run(pipeline(model), "a").output == "done"
    assert (model.live, model.batches) == (0, [1])


def test_batch_alone_leaves_aros_off_and_is_checked():
    assert resolve({"batch": True}, None) is None
    assert BatchSettings.of({"batch": {"wait_s": 5}}) == BatchSettings(wait_s=5)
    assert BatchSettings.of({"batch": False}) is None
    for wrong in ({"batch": "yes"}, {"batch": {"waits": 5}}, {"batch": {"wait_s": -1}}):
        with pytest.raises(BlueprintError, match="batch"):
            Step("ask", print, processing=wrong)


class Priced(Provider):
    """A model that the library's list of prices knows."""

    system = "openai"

    def said(self, messages, info):
        return ModelResponse([TextPart("done")], usage=RequestUsage(input_tokens=1_000_000))

    async def request(self, *given):
        return replace(await super().request(*given), model_name="gpt-4o", provider_name="openai")

    def batch_decode(self, *given):
        return replace(super().batch_decode(*given), provider_details={"processing": "batch"})


@pytest.mark.parametrize(
    ("durable", "processing", "cost"), [(False, None, 2.5), (True, None, 2.5), (True, {"batch": True}, 1.25)]
)
def test_a_request_costs_what_the_librarys_list_says(durable, processing, cost):
    with LocalEngine() as engine:
        step = Step("ask", Agent(Priced(), name="asker"), config=StepConfig(durable=durable), processing=processing)
        assert engine.run(Pipeline([step], name="ask"), "a").total_cost_usd == cost


def test_requests_of_agents_at_once_are_one_batch():
    model = Provider()
    agent = Agent(model, name="asker", capabilities=[FlujoDurability()])

    async def both(text: str) -> list[str]:
        answers = await asyncio.gather(agent.run(f"{text} one"), agent.run(f"{text} two"))
        return [each.output for each in answers]

    asking = Pipeline([Step("ask", both, config=DURABLE, processing=BATCH)], name="ask")
    with LocalEngine() as engine:
        assert engine.run(asking, "a").output == ["done"] * 2
    assert (model.live, model.batches) == (0, [2])


def test_an_agent_in_a_tool_is_asked_live():
    """The tool would be called again for each wait."""
    model = Provider()
    inner = Agent(Provider(), name="inner", capabilities=[FlujoDurability()])

    async def look(place: int) -> str:
        return (await inner.run(str(place))).output

    with LocalEngine() as engine:
        assert engine.run(pipeline(model, tools=[look]), "a").output == "done"
    assert (model.batches, inner.model.batches, inner.model.live) == ([1, 1], [], 1)


def test_under_a_budget_an_answer_of_a_batch_is_settled():
    with LocalEngine() as engine:
        asking = pipeline(Priced())
        within = engine.run(asking, "a", limits=UsageLimits(total_cost_usd_limit=20.0))
        assert (within.run_status, within.total_cost_usd) == ("succeeded", 1.25)


def test_a_step_that_is_not_durable_may_not_ask_in_batches():
    step = Step("ask", Agent(Provider(), name="asker"), processing={"batch": True})
    with LocalEngine() as engine, pytest.raises(PipelineError, match="set durable to true"):
        engine.run(Pipeline([step], name="ask"), "a")
