"""Steps in the background, through the engine in one process (SYS-31)."""

from __future__ import annotations

from random import Random

import pytest
from container_parts import SPENT, WatchedEngine, at, bare, fails, more, note, of, paid, scopes, seen, step
from pydantic import BaseModel

from flujo_client.address import child_run_id
from flujo_client.config.manager import Settings
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.outcome import Fault
from flujo_client.contract.trace import build_trace
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import AttemptReport, UserCodeFailed
from tests.support.builders import decided, enqueued, succeeded
from tests.support.memory import asked

pytestmark = pytest.mark.engine(kind=WatchedEngine)

BEHIND = StepConfig(max_retries=0, execution_mode="background")
ALL_BEHIND = StepConfig(execution_mode="background")
QUOTA = {"total_cost_usd_limit": 1.0, "total_tokens_limit": 10_000}


class Plain(BaseModel):
    """A context that has no fields for what a run in the background is."""

    n: int = 0


def later(name, agent=more, **rest):
    return step(name, agent, config=BEHIND, **rest)


def only_task(engine, run_id):
    [run] = engine.children(run_id)
    return run


def event_names(engine, run_id):
    return [event.name for event in engine.story(run_id)]


def test_the_pipeline_continues_with_what_the_step_was_given(engine):
    """What it will give is not there yet."""
    result = engine.run(bare(step("a", more), later("b", lambda data: data * 10), step("c", more)), 1)
    task = only_task(engine, result.run_id)
    assert (result.run_status, result.output, engine.result(task.id).output) == ("succeeded", 3, 20)
    assert event_names(engine, result.run_id) == [
        "step.succeeded",
        "background.launched",
        "step.succeeded",
        "run.succeeded",
    ]


def test_the_last_step_of_all_gives_its_input_too(engine):
    assert engine.run(bare(later("b")), 7).output == 7


def test_the_result_names_the_run(engine):
    result = engine.run(bare(later("b")), 1)
    task = only_task(engine, result.run_id)
    assert at(result, "b").metadata_ == {"child_run": task.id, "is_background": True}
    assert (task.name, task.parent_run, task.is_background) == ("b", result.run_id, True)
    run, rows = engine.stores.reads.read_run(result.run_id), engine.history(result.run_id)
    trace = build_trace(run, rows, engine.stores.reads.read_scopes(run.id), engine.story(run.id))
    assert trace.children[0].attributes["child_run"] == task.id


def test_one_after_the_other_begin_their_runs_in_commits_of_their_own(engine):
    """A decision begins one run at most; a message goes in between."""
    result = engine.run(
        bare(later("a"), later("b"), Step.loop_until("l", bare(later("c")), lambda *_: False, max_loops=3)), 1
    )
    assert sorted(each.name for each in engine.children(result.run_id)) == ["a", "b", "c", "c", "c"]
    assert result.output == 1


def test_each_branch_begins_its_own(engine):
    branches = {name: bare(step("s", more), later("b")) for name in "xyz"}
    result = engine.run(bare(Step.parallel("p", branches, max_concurrency=1)), 1)
    assert result.output == dict.fromkeys("xyz", 2)
    assert {engine.result(each.id).output for each in engine.children(result.run_id)} == {3}
    assert len(engine.children(result.run_id)) == 3


def test_deciding_again_launches_the_same_run():
    """Law 1: its id is derived, never drawn."""
    new = enqueued(bare(later("b")))
    one, other = decided(new, succeeded()), decided(new, succeeded())
    assert one == other
    assert one.child_run.run == child_run_id(new.first.ticket.run, "b")


def test_it_works_on_a_copy_of_the_context(engine):
    """Nothing merges back, and nothing that is written later is seen."""
    result = engine.run(of(step("a", note(title="a")), later("b", note(count=5)), step("c", note(title="c"))), "in")
    context = engine.result(only_task(engine, result.run_id).id).final_pipeline_context
    assert (context.title, context.count) == ("a", 5)
    assert (result.final_pipeline_context.title, result.final_pipeline_context.count) == ("c", 0)
    assert "b" not in result.final_pipeline_context.step_outputs


def test_its_context_says_what_it_is(engine):
    """§2.3."""
    result = engine.run(of(later("b")), 1)
    task = only_task(engine, result.run_id)
    context = engine.result(task.id).final_pipeline_context
    assert (context.run_id, context.task_id, context.parent_run_id) == (task.id, task.id, result.run_id)
    assert (context.is_background_task, context.background_error) == (True, None)
    theirs = result.final_pipeline_context
    assert (theirs.run_id, theirs.is_background_task, theirs.task_id) == (result.run_id, False, None)


def test_an_import_inside_it_hands_out_nothing_of_that(engine):
    """What belongs to one run alone is no import's to give."""
    body = of(of(step("x", more)).as_step("i", inherit_context=False), model=None).as_step("b", config=ALL_BEHIND)
    result = engine.run(of(body), 1)
    task = only_task(engine, result.run_id)
    assert engine.result(task.id).final_pipeline_context.task_id == task.id


@pytest.mark.parametrize("model", [Plain, None])
def test_a_context_without_such_fields_is_left_alone(engine, model):
    result = engine.run(of(later("b"), model=model), 1)
    context = engine.result(only_task(engine, result.run_id).id).final_pipeline_context
    assert context == (None if model is None else Plain())


def test_a_large_context_travels_by_reference(engine):
    title = Random(7).randbytes(200_000).hex()
    result = engine.run(of(later("b", seen)), "in", context={"title": title})
    task = only_task(engine, result.run_id)
    assert engine.sizes["b/body"] < 10_000
    assert engine.result(task.id).final_pipeline_context.title == title
    assert engine.stores.tables.runs[task.id].launched_with.is_reference


def test_a_context_that_cannot_be_made_fails_the_step_and_launches_nothing():
    new = enqueued(of(later("b")), context={"n": 1})
    deciding = decide(new.plan, AttemptReport(new.first, 1, succeeded()))
    assert next(deciding).role == "task_context"
    with pytest.raises(StopIteration) as done:
        deciding.throw(UserCodeFailed(Fault("configuration", "SnapshotTooLarge", "too large", "too large")))
    decision = done.value.value
    assert (decision.child_run, decision.end.status, decision.end.fault.type_name) == (
        None,
        "failed",
        "SnapshotTooLarge",
    )


def test_a_failure_is_its_own(engine):
    """U-16: the run that launched it has succeeded, and the run says why it failed."""
    result = engine.run(of(later("b", fails), step("c")), "in")
    task = engine.result(only_task(engine, result.run_id).id)
    assert (result.run_status, task.run_status) == ("succeeded", "failed")
    context = task.final_pipeline_context
    assert context.background_error == "Agent execution failed with NonRetryableError: no in"
    assert context.background_error_category == "agent"


def test_it_takes_its_fallback_with_it(engine):
    result = engine.run(bare(later("b", fails, fallback_step=step("other", more))), 1)
    task = engine.result(only_task(engine, result.run_id).id)
    assert (task.output, at(task, "b").metadata_["fallback_triggered"]) == (2, True)


def test_a_fallback_may_be_in_the_background(engine):
    result = engine.run(bare(step("a", fails, fallback_step=later("other"))), 1)
    assert (result.run_status, result.output) == ("succeeded", 1)
    assert engine.result(only_task(engine, result.run_id).id).output == 2


def test_a_run_that_is_stopped_leaves_it_alone(engine):
    """Its own child runs, which it waits for, it takes with it."""
    inner = bare(step("x")).as_step("inner", own_run=True)
    run_id = engine.enqueue(bare(bare(inner).as_step("b", config=ALL_BEHIND), step("c")), 1)
    engine.deliver(engine.bus.popleft())
    asked(engine.stores).request_cancel(run_id)
    engine.drain()
    task = only_task(engine, run_id)
    assert (engine.stores.reads.read_run(run_id).status, task.status) == ("cancelled", "succeeded")
    assert [each.status for each in engine.children(task.id)] == ["succeeded"]


def test_a_cancel_of_it_takes_its_child_runs_with_it(engine):
    inner = bare(step("x")).as_step("inner", own_run=True)
    run_id = engine.enqueue(bare(bare(inner).as_step("b", config=ALL_BEHIND)), 1)
    engine.deliver(engine.bus.popleft())
    task = only_task(engine, run_id)
    engine.deliver(engine.bus.popleft())
    engine.coordinator.stop(task.id, "cancelled", "enough")
    engine.recover()
    engine.drain()
    assert [each.status for each in (only_task(engine, run_id), *engine.children(task.id))] == ["cancelled"] * 2


def test_the_scope_it_leaves_is_closed(engine):
    result = engine.run(of(later("b")), 1)
    assert scopes(engine, result) == {"": "succeeded", "b": "succeeded"}


def limits_of(engine, run_id):
    return engine.stores.tables.runs[run_id].ticket.limits


def test_each_has_a_quota_of_its_own(engine):
    """§2.7: a dollar and ten thousand tokens."""
    run_id = engine.enqueue(bare(later("b", paid)), 1, limits=UsageLimits(total_tokens_limit=5))
    engine.drain()
    task = only_task(engine, run_id)
    given = limits_of(engine, task.id)
    assert (given["run"], given["limits"], given["task"]) == (task.id, QUOTA, "b")
    assert (engine.stores.reads.read_run(run_id).status, task.status) == ("succeeded", "succeeded")
    assert asked(engine.stores).read_budgets()[f"run:{task.id}"].settled.tokens == 15
    assert (engine.result(run_id).total_tokens, task.tokens) == (0, 15)


def test_its_own_limits_narrow_that_and_those_around_it_do_not(engine):
    """What stands around it is the other run's, which does not pay for it."""
    strict, wide = UsageLimits(total_tokens_limit=14), UsageLimits(total_tokens_limit=1)
    loop = Step.loop_until("l", bare(later("b", paid, usage_limits=strict)), lambda *_: True, usage_limits=wide)
    result = engine.run(bare(loop), 1)
    task = only_task(engine, result.run_id)
    assert (result.run_status, task.status, task.error.message) == (
        "succeeded",
        "failed",
        "Token limit of 14 exceeded. Current tokens: 15",
    )
    assert set(asked(engine.stores).read_budgets()) == {f"run:{task.id}", f"step:{task.id}:l/body/b/body/b"}


def test_its_tenant_pays_for_it():
    tenant = {"budgets": {"tenant": {"acme": {"total_tokens_limit": 14}}}, "background_tasks": {"quota": False}}
    with WatchedEngine(Settings.model_validate(tenant)) as engine:
        result = engine.run(bare(later("b", paid)), 1, tenant="acme")
        task = only_task(engine, result.run_id)
        assert (result.run_status, task.status) == ("succeeded", "failed")
        assert limits_of(engine, task.id)["limits"] is None


def test_without_a_quota_nothing_is_limited():
    with WatchedEngine(Settings.model_validate({"background_tasks": {"quota": False}})) as engine:
        result = engine.run(bare(later("b", paid)), 1)
        assert limits_of(engine, result.run_id) is None
        assert limits_of(engine, only_task(engine, result.run_id).id) is None
        assert only_task(engine, result.run_id).tokens == SPENT.input_tokens + SPENT.output_tokens


def test_one_inside_another_has_a_quota_of_its_own(engine):
    both = bare(step("x", paid), later("inner", paid)).as_step("outer", config=ALL_BEHIND)
    result = engine.run(bare(both), 1)
    outer = only_task(engine, result.run_id)
    inner = only_task(engine, outer.id)
    assert (limits_of(engine, inner.id)["limits"], limits_of(engine, inner.id)["run"]) == (QUOTA, inner.id)
    assert (outer.tokens, inner.tokens) == (15, 15)
