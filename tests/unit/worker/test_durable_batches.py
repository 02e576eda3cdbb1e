"""Durable steps ask their model requests in batches: pooled over runs, merged once, and live when no batch answers."""

from dataclasses import replace

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.batch import BatchResult
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.contract.processing import BatchSettings, resolve
from flujo_client.errors import BlueprintError
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
