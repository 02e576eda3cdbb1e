"""The outcome of a question is read once by the attempt that continues with it, and again only where it may have changed since."""

from collections import Counter
from dataclasses import replace

import pytest
from human_parts import ask, paused_run
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, UsageLimits
from flujo_client.errors import PausedException
from flujo_worker.agents import AgentTool, make_agent_async


def consultant():
    """An agent whose tool asks a person."""

    def consult(task):
        raise PausedException("Sure?")

    def respond(messages, info):
        told = [part for part in messages[-1].parts if part.part_kind == "tool-return"]
        return ModelResponse([TextPart("done") if told else ToolCallPart("run_consult", {"task": "t"})])

    return make_agent_async(FunctionModel(respond), tools=[AgentTool(consult, name="consult")])


@pytest.mark.parametrize("limits", [None, UsageLimits(total_tokens_limit=10_000)], ids=["no limit", "a limit"])
@pytest.mark.parametrize(
    ("step", "output"), [(ask(), "yes"), (Step("main", consultant()), "done")], ids=["step", "tool"]
)
def test_an_answer_is_read_once(engine, monkeypatch, step, output, limits):
    """By what reserves, by what asks the model's breaker, and by the work itself."""
    run = engine.enqueue(Pipeline([step]), "in", limits=limits)
    engine.drain()
    read, reply = Counter(), engine.stores.records.reply
    monkeypatch.setattr(engine.stores.records, "reply", lambda key: read.update([key]) or reply(key))
    assert engine.answer(run, "yes").output == output
    assert list(read.values()) == [1]


def test_an_answer_that_came_until_the_claim_is_heard(engine, monkeypatch):
    """A message that came twice may be read before someone answers, and claimed behind that."""
    run = paused_run(engine, Pipeline([ask(on_expiry="default", default="nobody", expires_s=60)]))
    reply, early = engine.stores.records.reply, [True]
    monkeypatch.setattr(
        engine.stores.records,
        "reply",
        lambda key: replace(reply(key), answer=None) if early and early.pop() else reply(key),
    )
    assert engine.answer(run, "yes").output == "yes"
