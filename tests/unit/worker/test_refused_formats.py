"""Models that refuse structured output: asked once more without it, and by no worker of the fleet with it again."""

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.pipeline.cache import InMemoryCache
from flujo_worker import LocalEngine, make_agent_async
from flujo_worker.agents.refused_formats import WEEK_S, RefusedFormats
from tests.support.openai_server import OpenAIServer, Said


class City(BaseModel):
    name: str


WHOLE = '{"name": "Oslo"}'
UNSUPPORTED = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
BAD_SCHEMA = "Invalid schema for response_format 'ask': 'name' is not permitted."
REFUSED = {"mode": "auto", "reason": "refused_by_provider"}


def answering(refusal):
    """Answer as a model does that does not take a format, and otherwise by a text, or the output tool."""

    def answer(request):
        if "response_format" in request.body or "format" in request.body.get("text", {}):
            return Said(refusal, status=400)
        return Said(arguments=WHOLE) if "tools" in request.body else Said(WHOLE)

    return answer


def step(server, name="gpt-new", model=OpenAIChatModel, **options):
    asks = model(name, provider=server.provider(), profile={"supports_json_schema_output": True})
    agent = make_agent_async(asks, **{"output_type": City, **options})
    return Step("ask", agent, processing={}, config=StepConfig(max_retries=0))


def soe(engine, result):
    """What is told of structured output."""
    told = [event for event in engine.story(result.run_id) if event.name.startswith(("aros.soe", "grammar"))]
    return [(event.name, {name: event.data[name] for name in REFUSED.keys() & event.data.keys()}) for event in told]


@pytest.mark.parametrize("model", [OpenAIChatModel, OpenAIResponsesModel])
def test_a_model_that_refuses_is_asked_once_without_and_remembered(model):
    """M-155: if unsupported, it is safely left out."""
    refusal = UNSUPPORTED if model is OpenAIChatModel else UNSUPPORTED.replace("response_format", "text.format")
    with OpenAIServer(answering(refusal)) as server, LocalEngine() as engine:
        pipeline = Pipeline([step(server, model=model)])
        first, second = engine.run(pipeline, "Which?"), engine.run(pipeline, "Which?")
        assert (first.output, second.output) == (City(name="Oslo"),) * 2
        assert [len(engine.history(result.run_id)) for result in (first, second)] == [1, 1]
        assert soe(engine, first) == soe(engine, second) == [("aros.soe.skipped", REFUSED)]
        assert len(server.requests) == 3, "twice for the first run, once for the second"


def test_what_is_refused_of_one_schema_is_asked_with_others():
    with OpenAIServer(answering(BAD_SCHEMA)) as server, LocalEngine() as engine:
        ask = step(server)
        assert engine.run(Pipeline([ask]), "Which?").output == City(name="Oslo")
        assert engine.run(Pipeline([ask]), "Which?").success
        assert len(server.requests) == 3
        engine.run(Pipeline([step(server, output_type=list[City])]), "Which?")
        assert "response_format" in server.bodies[3]


@pytest.mark.parametrize(("said", "status"), [("the prompt is too long", 400), (UNSUPPORTED, 500)])
def test_another_refusal_fails_the_attempt_as_it_is(said, status):
    with OpenAIServer(lambda _: Said(said, status=status)) as server, LocalEngine() as engine:
        result = engine.run(Pipeline([step(server)]), "Which?")
        assert (result.success, len(server.requests)) == (False, 1)
        assert [name for name, _ in soe(engine, result)] == ["aros.soe.enabled", "grammar.applied"]


def test_a_refusal_without_the_format_too_is_not_remembered():
    with OpenAIServer(lambda _: Said(UNSUPPORTED, status=400)) as server, LocalEngine() as engine:
        pipeline = Pipeline([step(server)])
        assert not engine.run(pipeline, "Which?").success
        engine.run(pipeline, "Which?")
        assert len(server.requests) == 4


@pytest.mark.parametrize("name", ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo"])
def test_an_old_model_is_not_asked_for_it(name):
    with OpenAIServer(answering(UNSUPPORTED)) as server, LocalEngine() as engine:
        asks = OpenAIChatModel(name, provider=server.provider())
        result = engine.run(Pipeline([Step("ask", make_agent_async(asks, output_type=City), processing={})]), "Which?")
        assert (result.output, len(server.requests)) == (City(name="Oslo"), 1)
        assert soe(engine, result) == [("aros.soe.skipped", {"mode": "auto", "reason": "unsupported_provider"})]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_workers_share_what_was_refused_for_a_week():
    clock = Clock()
    cache = InMemoryCache(clock=clock)
    one, other = RefusedFormats(cache, clock), RefusedFormats(cache, clock)

    async def story():
        assert not await other.includes("m")
        await one.add("m")
        assert await one.includes("m")
        assert not await other.includes("m"), "it asks once a minute"
        clock.now += 60
        assert await other.includes("m")
        clock.now += WEEK_S
        assert not await one.includes("m"), "providers learn"

    asyncio.run(story())


def test_a_cache_that_does_not_answer_fails_nothing():
    class Away:
        def get(self, key):
            raise ConnectionError

        set = delete = get

    async def story():
        refused = RefusedFormats(Away())
        assert not await refused.includes("m")
        await refused.add("m")
        assert await refused.includes("m"), "this worker knows it"

    asyncio.run(story())
