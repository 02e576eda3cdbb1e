"""Questions to people inside every container, and several at once (M-451, U-01…U-03): the run continues where it was."""

from dataclasses import replace

import pytest
from container_parts import Notes, echo, more, seen
from human_parts import ask, event_data, paused_run

from flujo_client import (
    ConditionalStep,
    DynamicParallelRouterStep,
    ImportStep,
    LoopStep,
    MapStep,
    ParallelStep,
    Pipeline,
    StateMachineStep,
    Step,
)
from flujo_client.contract.envelope import Envelope
from flujo_client.errors import ResumeError
from flujo_client.serial import loads
from flujo_worker.attempts.perform import DeliveryResult
from tests.support.builders import packed


def of(*steps):
    return Pipeline(list(steps), context_model=Notes)


def body(*names):
    return Pipeline([Step("first", echo), *[ask(name) for name in names or ("ask",)], Step("last", seen)])


SHAPES = {
    "loop": LoopStep("box", loop_body_pipeline=body(), exit_condition_callable=lambda *_: True),
    "map": MapStep("box", pipeline_to_run=body(), iterable_input="items"),
    "wide map": MapStep("box", pipeline_to_run=body(), iterable_input="items", parallel=True),
    "conditional": ConditionalStep("box", condition_callable=lambda *_: "x", branches={"x": body()}),
    "parallel": ParallelStep("box", branches={"x": body()}),
    "router": DynamicParallelRouterStep("box", router_agent=lambda _: ["x"], branches={"x": body()}),
    "nested": ImportStep("box", pipeline=body(), inherit_context=True),
    "machine": StateMachineStep("box", states={"x": body()}, start_state="x", end_states=["x"], transitions=[]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_it_continues_at_the_next_step_inside(engine, shape):
    """M-451: what stood before the question does not run again."""
    run = paused_run(engine, of(SHAPES[shape]), context={"items": ["i"]})
    assert engine.result(run).run_status == "paused"
    result = engine.answer(run, "yes")
    assert (result.run_status, result.final_pipeline_context.seen) == ("succeeded", ["yes"])
    steps = [row.step for row in engine.history(run) if row.kind == "step" and row.step in ("first", "last")]
    assert steps == ["first", "last"]


def test_a_loop_asks_once_in_each_iteration(engine):
    """U-01: the iteration is neither begun again nor counted twice."""
    loop = LoopStep(
        "rounds", loop_body_pipeline=body(), exit_condition_callable=lambda out, _: out == "stop", max_loops=9
    )
    run = paused_run(engine, of(loop))
    for said in ("go", "go", "stop"):
        result = engine.answer(run, said)
    assert (result.run_status, result.final_pipeline_context.seen) == ("succeeded", ["go", "go", "stop"])
    assert [each["iteration"] for each in event_data(engine, run, "loop.iteration")] == [1, 2, 3]


def test_a_question_in_a_conditional_in_a_loop_is_asked(engine):
    """U-02: at any nesting."""
    inner = ConditionalStep("if", condition_callable=lambda *_: "x", branches={"x": Pipeline([ask()])})
    loop = LoopStep("rounds", loop_body_pipeline=Pipeline([inner]), exit_condition_callable=lambda out, _: out == 2)
    run = paused_run(engine, of(loop))
    engine.answer(run, 1)
    assert engine.answer(run, 2).output == 2


def arms(**options):
    return ParallelStep("fan", branches={"a": body(), "b": Step("b", echo), "c": body()}, **options)


@pytest.mark.parametrize("first", ["a", "c"])
def test_siblings_finish_while_branches_wait(engine, first):
    """U-03: several branches are paused at once, and are answered in any order."""
    run = paused_run(engine, of(arms()))
    assert sorted(each.address for each in engine.approvals(run)) == ["fan/a", "fan/c"]
    assert [step.success for step in engine.result(run).step_history] == []
    second = {"a": "c", "c": "a"}[first]
    assert engine.answer(run, first, address=f"fan/{first}").run_status == "paused"
    result = engine.answer(run, second)
    assert (result.run_status, result.output) == ("succeeded", {"a": "a", "b": "in", "c": "c"})
    assert [each.answer for each in result.final_pipeline_context.hitl_history] == ["a", "c"]


def test_several_open_questions_have_to_be_named(engine):
    run = paused_run(engine, of(arms()))
    with pytest.raises(ResumeError, match=r"2 open questions.*'fan/a/ask', 'fan/c/ask'") as refused:
        engine.answer(run, "yes")
    assert refused.value.error_code == "SEVERAL_QUESTIONS"


def test_a_branch_that_pauses_gives_its_lane_to_the_next(engine):
    """Design §4: two wait for a person, and what has only one lane ends all the same."""
    run = paused_run(engine, of(arms(max_concurrency=1)))
    assert {each.address for each in engine.approvals(run)} == {"fan/a", "fan/c"}
    assert [each.status for each in engine.stores.reads.read_scopes(run) if each.address == "fan/b"] == ["succeeded"]
    engine.answer(run, 1, address="fan/a")
    assert engine.answer(run, 3).output == {"a": 1, "b": "in", "c": 3}


def test_the_last_branch_without_a_lane_rings_itself(engine):
    """Law of design §4: no chord counts it, so no one else would ring at once."""
    run = paused_run(engine, of(arms(max_concurrency=1)))
    engine.answer(run, 3, address="fan/c")
    engine.answer(run, 1)
    assert event_data(engine, run, "join.rung") == [{"by": "worker"}]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_question_deep_in_a_branch_leaves_the_lane_too(engine, depth):
    deep = Pipeline([ask()])
    for _ in range(depth):
        deep = Pipeline([LoopStep("l", loop_body_pipeline=deep, exit_condition_callable=lambda *_: True)])
    fan = ParallelStep("fan", branches={"a": deep, "b": Step("b", echo)}, max_concurrency=1)
    run = paused_run(engine, of(fan))
    assert [each.status for each in engine.stores.reads.read_scopes(run) if each.address == "fan/b"] == ["succeeded"]
    assert engine.answer(run, 7).output == {"a": 7, "b": "in"}


def test_a_branch_without_a_sibling_to_follow_keeps_its_lane(engine):
    fan = ParallelStep("fan", branches={"a": Step("a", echo), "b": body()}, max_concurrency=1)
    run = paused_run(engine, of(fan))
    engine.answer(run, "yes")
    assert event_data(engine, run, "join.rung") == [{"by": "chord"}]


def test_a_sibling_that_fails_closes_the_question(engine):
    """C-20: what no one waits for any more is asked no longer."""
    fan = ParallelStep(
        "fan",
        branches={"a": body(), "b": Pipeline([ask("gate"), Step("b", lambda x: 1 / x)])},
        on_branch_failure="propagate",
    )
    run = paused_run(engine, of(fan))
    result = engine.answer(run, "zero", step="gate")
    engine.recover()
    engine.drain()
    result = engine.result(run)
    assert (result.run_status, engine.approvals(run)) == ("failed", [])
    assert [row.status for row in engine.history(run) if row.kind == "resume" and row.step == "ask"] == ["cancelled"]


def test_a_child_runs_question_is_its_parents_too(engine):
    """SYS-16, M-449: both are paused, and either can be answered."""
    child = ImportStep("child", pipeline=body(), inherit_context=True, own_run=True)
    for answered in ("parent", "child"):
        run = paused_run(engine, of(child, Step("end", more)))
        [begun] = engine.children(run)
        assert (begun.status, engine.result(run).run_status) == ("paused", "paused")
        assert [each.run_id for each in engine.approvals(run)] == [begun.id]
        engine.answer(run if answered == "parent" else begun.id, 1)
        assert engine.result(run).output == 2


def test_one_question_after_the_other(engine):
    run = paused_run(engine, of(ParallelStep("fan", branches={"a": body("x", "y")})))
    engine.answer(run, 1)
    assert [each.step for each in engine.approvals(run)] == ["y"]
    assert engine.answer(run, 2).output == {"a": 2}


def only(engine, address):
    """Deliver what stands at an address until nothing is left of it; tell which deliveries counted as their chord's part."""
    counted = []
    while True:
        messages = [Envelope.from_wire(loads(each)) for each in engine.bus]
        place = next((place for place, each in enumerate(messages) if each.address == address), None)
        if place is None:
            return counted
        del engine.bus[place]
        counted.append(engine.attempts.perform(messages[place]).is_part)


@pytest.fixture
def waiting(engine):
    """A run of three branches and one lane: the first has paused, the second has its lane, the third is held."""
    run = engine.enqueue(of(arms(max_concurrency=1)), "in")
    only(engine, "")
    only(engine, "fan/a")
    [question] = engine.approvals(run)
    engine.stores.client.answer(question.key, packed("yes"))
    engine.sweep()
    return run


def test_a_branch_without_a_lane_is_no_part_of_its_chord(engine, waiting):
    """Law of design §4: the sibling that got its lane is that part."""
    assert only(engine, "fan/a") == [False, False]
    assert [each.status for each in engine.stores.reads.read_scopes(waiting) if each.address == "fan/a"] == [
        "succeeded"
    ]


def test_a_redelivery_without_a_lane_counts_as_little(engine, waiting):
    """The answer to its claim is `ended`, as for the one that closed a branch in its lane."""
    [message] = [each for each in engine.bus if Envelope.from_wire(loads(each)).address == "fan/a"]
    only(engine, "fan/a")
    [last] = [each.key for each in engine.history(waiting) if each.address == "fan/a" and each.step == "last"]
    again = replace(Envelope.from_wire(loads(message)), step="last", kind="step")
    assert again.key == last
    assert engine.attempts.perform(again) == DeliveryResult("ended", is_part=False)


def test_a_branch_without_a_lane_has_none_to_give(engine, waiting):
    """Or two would be at work where one may be."""
    only(engine, "fan/a")
    assert [each.lanes for each in engine.stores.reads.read_scopes(waiting) if each.address == "fan/c"] == [{}]
