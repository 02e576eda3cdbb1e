"""`Step.granular` and `unit`: durable steps by the original's names, and of plain functions."""

import asyncio
import sys

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import PipelineError
from flujo_client.plan.plan import Backoff
from flujo_worker import unit
from flujo_worker.agents.model_call import shortened

AT_ONCE = Backoff(base_s=0.001)
DURABLE = StepConfig(durable=True, max_retries=3, backoff=AT_ONCE)
calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


async def price(item: str, *, factor: int = 1) -> dict[str, float]:
    calls.append(item)
    return {item: 1.5 * factor, "nan": float("nan")}


def weigh(item: str) -> int:
    calls.append(item)
    return len(item)


class Found(BaseModel):
    items: list[str] = []


def looking(turns, sent):
    """An agent that looks something up so many times."""

    async def answer(messages, info):
        sent.append(len(messages))
        turn = len(sent) - 1
        if turn < turns:
            return ModelResponse([ToolCallPart("look", {"turn": turn}, tool_call_id=f"c{turn}")])
        return ModelResponse([TextPart("done")])

    agent = Agent(FunctionModel(answer), name="looking")

    @agent.tool_plain
    def look(turn: int) -> str:
        return "found " * 100

    return agent


def test_granular_takes_the_parameters_of_the_original():
    config = Step.granular("a", price).config
    assert config.durable
    assert (config.max_turns, config.history_max_tokens, config.blob_threshold_bytes) == (20, 128_000, 20_000)
    assert (config.enforce_idempotency, config.fingerprint) == (False, "strict")
    other = Step.granular("a", price, resume_fingerprint_mode="compat", config=StepConfig(max_retries=7), queue="q")
    assert (other.config.fingerprint, other.config.max_retries, other.queue) == ("conversation", 7, "q")
    with pytest.raises(PipelineError, match="step 'a' must be strict or compat, got 'loose'"):
        Step.granular("a", price, resume_fingerprint_mode="loose")


def test_an_agent_that_takes_too_many_turns_fails_by_name_and_is_not_retried(engine):
    sent = []
    result = engine.run(Pipeline([Step.granular("ask", looking(99, sent), max_turns=3)], name="p"), "hi")
    assert len(sent) == 3
    assert "step 'ask' has made 3 requests without an answer" in result.error.message
    assert "max_turns" in result.error.suggestion


def test_a_long_conversation_is_sent_shortened(engine):
    sent = []
    step = Step.granular("ask", looking(8, sent), history_max_tokens=1200)
    assert engine.run(Pipeline([step], name="p"), "hi").output == "done"
    assert max(sent) < 17
    assert sent[-1] % 2 == 1


def test_shortening_keeps_the_beginning_and_whole_turns():
    first = ModelRequest([UserPromptPart("prompt")])
    turns = [
        [
            ModelResponse([ToolCallPart("t", {}, tool_call_id=str(n))]),
            ModelRequest([ToolReturnPart("t", "x" * 4000, tool_call_id=str(n))]),
        ]
        for n in range(5)
    ]
    whole = [first, *(each for turn in turns for each in turn)]
    assert shortened(whole, 10**6) == whole
    assert shortened(whole, 3500) == [first, *turns[-2], *turns[-1]]
    assert shortened(whole, 1) == [first, *turns[-1]]
    assert shortened([first], 1) == [first]


def test_calls_of_a_plain_function_are_made_once_however_often_it_is_performed(engine):
    async def work(data: str) -> object:
        got = await unit(price, "bread", factor=2)
        twice = [await unit(weigh, "milk") for _ in range(2)]
        if len(calls) < 4:
            calls.append("failed")
            raise OSError("the network is away")
        return [got["bread"], got["nan"] != got["nan"], twice]

    result = engine.run(Pipeline([Step("work", work, config=DURABLE)], name="p"), "hi")
    assert result.output == [3.0, True, [4, 4]]
    assert calls == ["bread", "milk", "milk", "failed"]


def test_other_arguments_are_another_call(engine):
    async def work(data: str) -> object:
        return [await unit(weigh, item) for item in ("a", "bb", "a")]

    assert engine.run(Pipeline([Step("work", work, config=DURABLE)], name="p"), "hi").output == [1, 2, 1]
    assert calls == ["a", "bb", "a"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: unit(lambda: 1), "cannot be found again by its name"),
        (lambda: unit(weigh, object()), "a call of test_granular_steps:weigh cannot be recorded: arguments"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(engine, given, says):
    async def work(data: str) -> object:
        return await given()

    result = engine.run(Pipeline([Step("work", work, config=DURABLE)], name="p"), "hi")
    assert says in result.error.message
    assert calls == []


def test_the_context_is_refused_for_its_changes_would_be_lost(engine):
    async def work(data: str, *, context: Found) -> object:
        return await unit(weigh, context)

    pipeline = Pipeline([Step("work", work, config=DURABLE)], name="p", context_model=Found)
    assert "got the pipeline's context" in engine.run(pipeline, "hi").error.message


def test_outside_of_attempts_it_is_a_plain_call():
    async def called():
        return await unit(weigh, "abc"), (await unit(price, "x"))["x"], await unit(lambda: 5)

    assert asyncio.run(called()) == (3, 1.5, 5)


def test_a_pydantic_ai_that_is_too_old_is_refused_by_name(engine, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("pydantic_ai.durable_exec")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "flujo_worker.agents.durability", raising=False)
    monkeypatch.delitem(sys.modules, "flujo_worker.agents.durable_library", raising=False)
    monkeypatch.delitem(sys.modules, "flujo_worker.agents.asked", raising=False)
    result = engine.run(Pipeline([Step.granular("ask", looking(0, []))], name="p"), "hi")
    assert "step 'ask' is durable, which needs pydantic-ai 2.62 or newer" in result.error.message


def test_tools_that_are_known_only_in_the_run_must_declare_their_effects_too(engine):
    sent = []
    renamed = FunctionToolset([weigh], id="tools").renamed({"send_mail": "weigh"})
    agent = Agent(looking(0, sent).model, name="a", toolsets=[renamed])
    result = engine.run(Pipeline([Step.granular("ask", agent, enforce_idempotency=True)], name="p"), "hi")
    assert "step 'ask': tool 'send_mail' looks like an effect" in result.error.message
    assert sent == []
