"""Imports that run as separate runs, through the engine in one process (SYS-16, U-16)."""

from __future__ import annotations

from random import Random

import pytest
from container_parts import (
    ONCE,
    SPENT,
    WatchedEngine,
    assert_attributed,
    at,
    bare,
    fails,
    more,
    note,
    of,
    paid,
    scopes,
    seen,
    step,
)

from flujo_client.address import child_run_id, is_run_id
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.results import Refinement, RefinementCheck
from flujo_client.contract.trace import build_trace
from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import AttemptReport
from tests.support.builders import decided, enqueued, succeeded
from tests.support.memory import asked

pytestmark = pytest.mark.engine(kind=WatchedEngine)


class Demanding(PipelineContext):
    must: str


def child(*steps, name="child", **options):
    return ImportStep(name, pipeline=Pipeline(list(steps), name="legal"), own_run=True, **options)


def inside(*steps, **options):
    return child(*steps, inherit_context=True, **options)


def only_child(engine, run_id):
    [run] = engine.children(run_id)
    return run


def started_runs(engine, pipeline, value="in", messages=1, **options):
    """A run whose child run has begun, with the child's first message still on the bus."""
    run_id = engine.enqueue(pipeline, value, **options)
    for _ in range(messages):
        engine.deliver(engine.bus.popleft())
    return run_id, only_child(engine, run_id).id


def is_left_alive(engine, run_id):
    runs = [run_id, *(child.id for child in engine.children(run_id))]
    live = [row for run in runs for row in engine.history(run) if row.status in ("ready", "queued", "running")]
    return live or [scope for run in runs for scope in engine.stores.reads.read_scopes(run) if scope.status == "open"]


def test_an_import_may_be_a_run_of_its_own(engine):
    """SYS-16: the parent continues with its output; its steps are its own."""
    result = engine.run(bare(step("a", more), child(step("x", more), step("y", more)), step("b", more)), 1)
    run = only_child(engine, result.run_id)
    own = engine.result(run.id)
    assert (result.output, at(result, "child").output, own.output) == (5, 4, 4)
    assert at(result, "child").step_history == []
    assert [each.name for each in own.step_history] == ["x", "y"]
    assert (run.name, run.status, run.parent_run) == ("legal", "succeeded", result.run_id)
    assert not is_left_alive(engine, result.run_id)


def test_a_pipeline_without_a_name_is_listed_under_its_steps(engine):
    result = engine.run(bare(bare(step("x")).as_step("child", own_run=True)))
    assert only_child(engine, result.run_id).name == "child"


def test_the_result_names_it(engine):
    result = engine.run(bare(child(step("x"))))
    assert at(result, "child").metadata_ == {"child_run": only_child(engine, result.run_id).id}


def test_it_has_what_its_parent_has_but_metadata_and_key(engine):
    options = {"deadline": engine.now + 60, "tenant": "acme", "queue": "mine", "priority": 4, "idempotency_key": "k"}
    options["trace_parent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run_id, child_id = started_runs(engine, bare(child(step("x"))), metadata={"k": 1}, **options)
    theirs, its = (
        engine.stores.backlog.envelopes([engine.history(run)[0].key])[0].ticket for run in (run_id, child_id)
    )
    for name in ("reference", "fingerprint", "deadline", "tenant", "queue", "priority", "trace_parent"):
        assert getattr(its, name) == getattr(theirs, name), name
    assert its.root == "child/body"
    assert engine.stores.reads.read_run(child_id).metadata == {}


def test_deciding_again_begins_the_same_run():
    """Law 1: its id is derived, never drawn."""
    new = enqueued(Pipeline([child(step("x"))]))

    def decision():
        deciding = decide(new.plan, AttemptReport(new.first, 1, succeeded()))
        assert next(deciding).role == "import_context"
        with pytest.raises(StopIteration) as done:
            deciding.send(None)
        return done.value.value

    assert decision() == decision()
    assert is_run_id(decision().child_run.run)


def test_ids_stay_ids_however_deep_they_nest():
    run, known = "r" * 80, set()
    for _ in range(30):
        run = child_run_id(run, "loop#3/legal")
        known.add(run)
        assert is_run_id(run)
    assert len(known) == 30
    assert len({run.partition(".")[0] for run in known}) == 1


def test_no_worker_is_held_while_it_is_waited_for(engine):
    """Nothing of the parent is claimed or published meanwhile."""
    run_id, _ = started_runs(engine, bare(child(step("x")), step("b")))
    assert [row.status for row in engine.history(run_id)] == ["succeeded"]
    assert len(engine.bus) == 1
    assert engine.stores.reads.read_run(run_id).status == "running"


def test_a_plan_without_one_is_what_it_was():
    """No fingerprint changes for those who do not use it."""
    plain, own = (compile_plan(bare(ImportStep("c", pipeline=bare(step("x")), own_run=each))) for each in (False, True))
    assert "own_run" not in plain.nodes[0].rules
    assert plain.fingerprint != own.fingerprint


def test_it_works_on_the_parents_context_if_asked(engine):
    result = engine.run(of(step("a", note(title="a")), inside(step("x", seen), step("y", note(count=7)))), "in")
    assert (result.final_pipeline_context.title, result.final_pipeline_context.count) == ("a", 7)
    assert result.final_pipeline_context.seen == ["in"]


def test_each_context_has_its_own_runs_id(engine):
    result = engine.run(of(inside(step("x")), step("tell", lambda data, context: context.run_id)), "in")
    own = engine.result(only_child(engine, result.run_id).id)
    assert own.final_pipeline_context.run_id == own.run_id
    assert result.output == result.final_pipeline_context.run_id == result.run_id


def test_it_hands_out_what_the_import_asks_for(engine):
    made = child(step("x", note(title="mine", count=3)), inherit_context=True, outputs=[("title", "scratchpad.told")])
    result = engine.run(of(made), "in")
    assert result.final_pipeline_context.scratchpad == {"told": "mine"}
    assert (result.final_pipeline_context.title, result.final_pipeline_context.count) == ("", 0)


def test_the_input_can_be_kept_beside_the_output(engine):
    judge = step("judge", lambda data: RefinementCheck(is_complete=True))
    assert engine.run(bare(child(judge, keeps_input=True)), "draft").output == Refinement(
        artifact="draft", check=RefinementCheck(is_complete=True)
    )


def test_a_large_context_travels_by_reference(engine):
    """The child's rows and message only point at it."""
    title = Random(7).randbytes(200_000).hex()
    result = engine.run(of(inside(step("x", seen))), "in", context={"title": title})
    assert engine.sizes["child/body"] < 10_000
    assert result.final_pipeline_context.title == title


def test_what_an_import_refuses_begins_no_run(engine):
    made = ImportStep("child", pipeline=Pipeline([step("x")], context_model=Demanding), own_run=True)
    result = engine.run(of(made), "in")
    assert_attributed(
        engine, result, "import_context of 'child'", "PipelineContextInitializationError", "must: Field required"
    )
    assert engine.children(result.run_id) == []


def test_a_failure_ends_the_parent_and_says_where(engine):
    result = engine.run(of(inside(step("write", note(title="never")), step("no", fails)), step("after")), "in")
    assert_attributed(engine, result, "import 'child' failed", "NonRetryableError", "no in")
    assert result.final_pipeline_context.title == ""
    assert only_child(engine, result.run_id).status == "failed"
    own, parent = only_child(engine, result.run_id), engine.stores.reads.read_run(result.run_id)
    assert own.failed_key == parent.failed_key == f"{own.id}:child/body:no:1"


TOLD = {"error": "Agent execution failed with NonRetryableError: no in"}


@pytest.mark.parametrize(
    ("on_failure", "output"), [("skip", "in"), ("continue_with_default", "instead"), ("tell", TOLD)]
)
def test_a_failure_may_be_passed_over(engine, on_failure, output):
    made = inside(step("write", note(title="never")), step("no", fails), on_failure=on_failure, default="instead")
    result = engine.run(of(made, step("after")), "in")
    assert (result.run_status, result.output) == ("succeeded", output)
    assert "NonRetryableError: no in" in at(result, "child").feedback
    assert at(result, "child").metadata_["on_failure"] == on_failure
    assert result.final_pipeline_context.title == ""


@pytest.mark.parametrize("on_failure", ["skip", "continue_with_default", "tell"])
def test_an_abort_is_never_passed_over(engine, on_failure):
    """C-23."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    result = engine.run(bare(child(step("stop", aborts), on_failure=on_failure)), "in")
    assert (result.run_status, result.error.code) == ("failed", "PIPELINE_ABORT")


def test_a_retry_inside_is_the_childs_own(engine):
    calls = []

    def flaky(data):
        calls.append(data)
        if len(calls) == 1:
            raise ValueError("once")
        return data

    result = engine.run(bare(child(step("x", flaky, config=StepConfig(max_retries=1)))), "in")
    assert (result.run_status, len(calls)) == ("succeeded", 2)


def test_in_a_loop_each_iteration_has_its_own(engine):
    loop = Step.loop_until("loop", bare(child(step("x", more))), lambda out, ctx: out == 3)
    result = engine.run(bare(loop), 0)
    assert result.output == 3
    assert len({run.id for run in engine.children(result.run_id)}) == 3
    assert at(result, "loop").attempts == 3


def test_in_branches_they_run_side_by_side_and_the_join_waits_for_all(engine):
    arms = {name: bare(step("before"), child(step("x", more)), step("after", more)) for name in "abc"}
    result = engine.run(bare(Step.parallel("fan", arms, max_concurrency=2)), 1)
    assert result.output == {"a": 3, "b": 3, "c": 3}
    assert len(engine.children(result.run_id)) == 3
    assert engine.most["fan"] <= 2
    assert [event.data["by"] for event in engine.story(result.run_id) if event.name == "join.rung"].count("chord") == 1


def test_at_the_end_of_a_branch_its_join_is_the_branchs_last_message(engine):
    """M-007: it counts as the lane's part, so the chord rings and no sweep is needed."""
    arms = {name: child(step("x", seen), inherit_context=True) for name in "ab"}
    result = engine.run(of(Step.parallel("fan", arms)), "in")
    bells = {(event.attempt, event.data["by"]) for event in engine.story(result.run_id) if event.name == "join.rung"}
    assert result.final_pipeline_context.count == 2
    assert (f"{result.run_id}:fan:fan:join", "chord") in bells


def test_a_fan_out_may_stand_in_it(engine):
    fan = Step.parallel("fan", {"a": step("x", more), "b": child(step("y", more), name="inner")})
    result = engine.run(bare(step("s"), child(fan)), 1)
    assert result.output == {"a": 2, "b": 2}
    assert not is_left_alive(engine, result.run_id)


def test_child_runs_have_child_runs(engine):
    made = step("x", more)
    for depth in range(6):
        made = child(made, name=f"c{depth}")
    result = engine.run(bare(made), 1)
    assert result.output == 2
    run_id, depth = result.run_id, 0
    while runs := engine.children(run_id):
        run_id, depth = runs[0].id, depth + 1
    assert depth == 6


def test_a_state_may_be_one(engine):
    made = StateMachineStep(
        "m",
        states={"one": child(step("x", more)), "two": step("y", more)},
        start_state="one",
        end_states=["two"],
        transitions=[{"from": "one", "on": "success", "to": "two"}],
    )
    assert engine.run(bare(made), 1).output == 3


def test_a_cancel_of_the_parent_takes_the_child_with_it(engine):
    run_id, child_id = started_runs(engine, bare(child(child(step("x"), name="inner"))), "in")
    engine.deliver(engine.bus.popleft())
    asked(engine.stores).request_cancel(run_id)
    engine.bus.clear()
    engine.drain()
    inner = only_child(engine, child_id)
    assert [engine.stores.reads.read_run(each).status for each in (run_id, child_id, inner.id)] == ["cancelled"] * 3
    assert (inner.reason, engine.stores.reads.read_run(child_id).reason) == ("parent ended",) * 2
    assert not is_left_alive(engine, run_id)
    assert not is_left_alive(engine, child_id)


@pytest.mark.parametrize("on_failure", ["abort", "skip"])
def test_a_cancel_of_the_child_is_a_failure_of_its_step(engine, on_failure):
    run_id, child_id = started_runs(engine, bare(child(step("x"), on_failure=on_failure), step("b")), "in")
    asked(engine.stores).request_cancel(child_id)
    engine.bus.clear()
    engine.drain()
    result = engine.result(run_id)
    assert result.run_status == ("failed" if on_failure == "abort" else "succeeded")
    assert f"child run {child_id} was cancelled" in at(result, "child").feedback
    assert on_failure == "skip" or result.error.code == "CHILD_CANCELLED"
    assert not is_left_alive(engine, run_id)


def test_a_child_that_has_expired_is_a_failure_of_its_step(engine):
    run_id, child_id = started_runs(engine, bare(child(step("x"))), "in")
    engine.coordinator.stop(child_id, "expired", "deadline passed")
    engine.drain()
    assert engine.result(run_id).error.code == "CHILD_EXPIRED"


def test_both_expire_when_the_deadline_is_over(engine):
    run_id, child_id = started_runs(engine, bare(child(step("x"))), "in", deadline=engine.now + 60)
    engine.now += 61
    engine.drain()
    assert [engine.stores.reads.read_run(each).status for each in (run_id, child_id)] == ["expired", "expired"]


def test_a_fan_out_that_is_aborted_takes_the_children_of_its_branches_with_it(engine):
    arms = {"a": child(step("x")), "b": step("no", fails)}
    run_id = engine.enqueue(bare(Step.parallel("fan", arms)), "in")
    engine.deliver(engine.bus.popleft())
    engine.deliver(engine.bus.popleft())  # the child run begins, then its sibling fails
    engine.deliver(engine.bus.popleft())
    engine.bus.popleft()  # the child's own message is lost
    engine.drain()
    result, run = engine.result(run_id), only_child(engine, run_id)
    assert (result.run_status, run.status, run.reason) == ("failed", "cancelled", "parent ended")
    assert scopes(engine, result)["fan/a"] == "cancelled"
    assert not is_left_alive(engine, run_id)


def test_a_bell_that_was_lost_is_rung_by_a_sweep(engine, monkeypatch):
    """A worker died between the child's end and the ring."""
    monkeypatch.setattr(engine.coordinator, "_signal_parent", lambda *_, **__: None)
    result = engine.run(bare(child(step("x")), step("b")), "in")
    assert result.run_status == "running"
    engine.now += 3
    engine.recover()
    engine.drain()
    assert engine.result(result.run_id).run_status == "succeeded"


def test_messages_that_come_twice_change_nothing(engine):
    """Law 1."""
    run_id = engine.enqueue(bare(child(step("x", paid)), step("b")), "in")
    while engine.bus:
        message = engine.bus.popleft()
        engine.deliver(message)
        engine.deliver(message)
    result = engine.result(run_id)
    assert (result.run_status, result.total_tokens) == ("succeeded", 15)
    assert len(engine.children(run_id)) == 1
    assert [event.name for event in engine.story(run_id)].count("join.rung") == 1


def test_what_it_spent_is_counted_once_in_each_run_above_it(engine):
    """U-14, C-11."""
    made = child(step("x", paid), child(step("y", paid), name="inner"))
    result = engine.run(bare(step("a", paid), Step.parallel("fan", {"b": made, "c": step("z", paid)})), "in")
    own = engine.result(only_child(engine, result.run_id).id)
    assert (result.total_tokens, own.total_tokens) == (60, 30)
    assert result.total_cost_usd == 4 * SPENT.cost_usd
    assert (at(result, "fan", "b").token_counts, at(result, "fan").token_counts) == (30, 45)


def test_a_failed_ones_spend_counts_too(engine):
    result = engine.run(bare(child(step("x", paid), step("no", fails), on_failure="skip")), "in")
    assert (result.total_tokens, at(result, "child").token_counts) == (15, 15)


def test_the_trace_names_it(engine):
    """M-290."""
    result = engine.run(bare(child(step("x", paid))), "in")
    run_id, stores = result.run_id, engine.stores
    rows = (
        stores.reads.read_run(run_id),
        stores.reads.read_attempts(run_id),
        stores.reads.read_scopes(run_id),
        stores.reads.read_events(run_id),
    )
    [box] = build_trace(*rows).children
    assert (box.kind, box.status, box.children) == ("nested", "succeeded", [])
    assert (box.attributes["child_run"], box.attributes["tokens"]) == (only_child(engine, run_id).id, 15)


def test_its_own_trace_begins_with_its_first_step(engine):
    result = engine.run(of(child(Step.loop_until("loop", step("x"), lambda *_: True), step("y"))), "in")
    run_id, stores = only_child(engine, result.run_id).id, engine.stores
    rows = (
        stores.reads.read_run(run_id),
        stores.reads.read_attempts(run_id),
        stores.reads.read_scopes(run_id),
        stores.reads.read_events(run_id),
    )
    assert [each.name for each in build_trace(*rows).children] == ["loop", "y"]


def test_a_step_in_the_middle_of_a_run_knows_nothing_of_this():
    """A decision of ordinary steps begins no run."""
    new = enqueued(
        Pipeline([Step("a", more, config=ONCE), Step("b", more, config=ONCE)], context_model=PipelineContext)
    )
    assert decided(new, succeeded()).child_run is None
