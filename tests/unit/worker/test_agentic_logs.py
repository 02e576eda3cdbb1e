"""Long logs of agentic loops: every turn is readable, and the cost of a turn does not depend on their number."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest
from agentic_parts import ask, finish, loop, looped, run, turns
from container_parts import TWICE, Flaky, Notes
from pydantic import Field, field_validator

from flujo_client import ExecutedCommandLog, Pipeline, PipelineContext, Step
from flujo_client.contract.hooks import PreStepPayload
from flujo_client.serial import Packed, Resolver, decode, encode
from flujo_worker.replay.replay import replay
from tests.support.memory import asked

SIZE = 5_000
MANY = 90
"""Turns that have more than a context has in one piece."""


def long_text(number):
    return f"{number:04}" * (SIZE // 4)


ALL = [long_text(number) for number in range(1, MANY)]


class Counts:
    """A planner that has its agent work until its turns are over; it keeps the results that it is told, and the processor time of each turn."""

    def __init__(self, asks_at=None):
        self.told, self.times, self.asks_at = [], [], asks_at

    def run(self, brief):
        self.told = [each["result"] for each in brief["command_log"]]
        self.times.append(time.process_time())
        if brief["turn"] == self.asks_at:
            return ask()
        return finish() if brief["turn"] == brief["max_turns"] else run("work", brief["turn"])


def test_every_turn_is_told_and_recorded(engine):
    planner = Counts()
    result = engine.run(looped(planner, {"work": long_text}, max_loops=MANY), "goal")
    assert planner.told == ALL
    assert [each for _, _, each in turns(result)] == [*ALL, "done"]
    assert all(type(each) is ExecutedCommandLog for each in result.final_pipeline_context.command_log)
    outputs = result.final_pipeline_context.step_outputs
    assert (outputs["work"], outputs["record"]) == (ALL[-1], "done")


@pytest.mark.large
def test_an_agent_that_takes_the_context_sees_every_turn_and_may_change_it(engine):
    seen = []

    def work(number, *, context):
        seen.append([each.result for each in context.command_log])
        context.count += 1
        return long_text(number)

    result = engine.run(looped(Counts(), {"work": work}, max_loops=MANY), "goal")
    assert seen == [ALL[:length] for length in range(MANY - 1)]
    assert result.final_pipeline_context.count == MANY - 1


@pytest.mark.large
def test_a_person_and_a_failure_in_the_middle_lose_no_turn(engine):
    flaky = Flaky(1)

    def work(number):
        if number == MANY - 5:
            flaky.run(number)
        return long_text(number)

    agent = Step("work", work, config=TWICE)
    planner = Counts(asks_at=MANY - 10)
    run_id = engine.enqueue(looped(planner, {"work": agent}, max_loops=MANY), "goal")
    engine.drain()
    assert engine.result(run_id).run_status == "paused"
    engine.answer(run_id, "yes")
    engine.drain()
    expected = ["yes" if number == MANY - 10 else long_text(number) for number in range(1, MANY)]
    assert [each for _, _, each in turns(engine.result(run_id))] == [*expected, "done"]
    assert flaky.calls == 2


class Newest(PipelineContext):
    """Retains two turns only."""

    @field_validator("command_log")
    @classmethod
    def two(cls, log):
        return log[-2:]


class Plain(PipelineContext):
    """Has its turns as mappings."""

    command_log: list[dict[str, Any]] = Field(default_factory=list)

    @field_validator("command_log", mode="before")
    @classmethod
    def mappings(cls, log):
        return [each if isinstance(each, dict) else each.model_dump() for each in log]


@pytest.mark.parametrize("model", [Newest, Plain])
def test_a_model_with_a_log_of_its_own_validates_every_turn(engine, model):
    pipeline = looped(Counts(), {"work": long_text}, max_loops=4)
    result = engine.run(Pipeline(pipeline.steps, context_model=model), "goal")
    log = result.final_pipeline_context.command_log
    if model is Newest:
        assert [each.result for each in log] == [long_text(3), "done"]
    else:
        assert [each["result"] for each in log] == [*map(long_text, (1, 2, 3)), "done"]


def test_hooks_see_what_the_planner_is_told(engine):
    seen = []

    def hook(payload: PreStepPayload):
        if payload.step_name == "planner":
            seen.append(payload.step_input)

    pipeline = looped(Counts(), {"work": long_text}, max_loops=2)
    engine.run(Pipeline(pipeline.steps, context_model=Notes, hooks=[hook]), "goal")
    assert [(each["goal"], each["turn"], len(each["command_log"])) for each in seen] == [("goal", 1, 0), ("goal", 2, 1)]


@pytest.mark.large
def test_a_long_loop_replays_and_can_be_retried_from_the_step_after_it(engine):
    """The recorded decisions are made again, and a fork has every turn in its context."""
    seen = []

    def after(_, *, context):
        seen.append([each.result for each in context.command_log])
        return len(context.command_log)

    box = loop(Counts(), {"work": long_text}, max_loops=MANY)
    run_id = engine.run(Pipeline([box, Step("after", after)], context_model=Notes), "goal").run_id
    stores = engine.stores
    recorded = (
        asked(stores).read_recording(run_id),
        asked(stores).read_notices(run_id),
        stores.reads.read_scopes(run_id),
        stores.reads.read_children(run_id),
    )
    assert replay(*recorded).difference is None
    forked = engine.fork(run_id, "after")
    engine.drain()
    assert engine.result(forked).output == engine.result(run_id).output == MANY
    assert seen == [[*ALL, "done"]] * 2


def milliseconds(act):
    began = time.process_time()
    act()
    return (time.process_time() - began) * 1e3


@pytest.mark.large
def test_a_turn_costs_hardly_more_however_many_there_were(engine):
    """300 turns of 5 kB: what the last turns take more than the first is a few times what decoding their context once takes.

    Only the planner reads every turn. A turn has three attempts and five questions to functions; were each given the live context, it would be
    more than ten times as much.
    """
    planner = Counts()
    result = engine.run(looped(planner, {"work": long_text}, max_loops=300), "goal")
    each = [(after - before) * 1e3 for before, after in zip(planner.times, planner.times[1:], strict=False)]
    early, late = median(each[20:50]), median(each[-30:])
    packed = Packed.of(encode(result.final_pipeline_context))
    decoded = median(milliseconds(lambda: decode(packed.tree(), resolve=Resolver(["*"]))) for _ in range(9))
    print(f"turn 20 to 50: {early:.1f} ms; 270 to 300: {late:.1f} ms; decoding the context: {decoded:.1f} ms")
    assert late - early < 5 * decoded
