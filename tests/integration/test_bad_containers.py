"""Containers that cannot be: refused where they are asked for, or failed as themselves on a worker; nothing lost, nothing left open."""

import resource
import sys
import threading
from pathlib import Path
from random import Random

import bad_container_pipelines as bad
import pytest
from bad_container_pipelines import Notes, echo, ok
from pydantic import BaseModel

from flujo_client import ImportStep, Pipeline, StateMachineStep, Step
from flujo_client.errors import InfiniteFallbackError, PipelineError
from tests.support.fleet import STEADY

pytestmark = pytest.mark.site(worker=STEADY, agents={"function_timeout_s": 0.5})

yes = bad.answers(True)


class Closed(BaseModel):
    title: str = ""


def containing_itself():
    steps = [ok]
    made = Pipeline(steps, name="snake")
    steps.append(ImportStep("tail", pipeline=made))
    return made


def deep(floors):
    made = ok
    for floor in range(floors):
        made = ImportStep(f"floor{floor}", pipeline=made)
    return made


REFUSED = {
    "two names that are written alike": (Step.parallel("c", {1: ok, "1": ok}), "2 of them have this name"),
    "a name that is no address": (Step.parallel("c", {"a/b": ok}), "branch 'a/b': a name must have"),
    "an empty name": (Step.parallel("c", {"": ok}), "branch '': a name must have"),
    "keys that are written alike": (Step.branch_on("c", yes, {True: ok, "true": ok}), "2 of them have this name"),
    "a key that is none": (Step.branch_on("c", yes, {2.5: ok}), "a key must be a str, a bool or an int"),
    "two defaults": (Step.branch_on("c", yes, {"default": ok}, ok), "this name is reserved for the default branch"),
    "no branches to choose from": (Step.branch_on("c", yes, {}), "branches must be a mapping that is not empty"),
    "a condition that cannot be called": (Step.branch_on("c", "yes", {"a": ok}), "not callable"),
    "a body without steps": (Step.loop_until("c", Pipeline([]), yes), "its body has no steps"),
    "a branch without steps": (Step.parallel("c", {"a": Pipeline([])}), "its 'a' has no steps"),
    "a body that is no pipeline": (Step.loop_until("c", 5, yes), "must be a Pipeline or a Step"),
    "no iterations": (Step.loop_until("c", ok, yes, max_loops=0), "max_loops must be a whole number from 1"),
    "no lanes": (Step.parallel("c", {"a": ok}, max_concurrency=0), "max_concurrency must be a whole number from 1"),
    "an unknown strategy": (
        Step.parallel("c", {"a": ok}, merge_strategy="magic"),
        "merge_strategy 'magic' must be one of",
    ),
    "an unknown reduction": (Step.parallel("c", {"a": ok}, reduce="sum"), "reduce 'sum' must be one of"),
    "fields of nobody": (Step.parallel("c", {"a": ok}, field_mapping={"b": ["title"]}), "'b', which is not a branch"),
    "a field there is not": (
        Step.parallel("c", {"a": ok}, context_include_keys=["nope"]),
        "'nope' is not a field of Closed",
    ),
    "items there are not": (Step.map_over("c", ok, iterable_input="nope"), "'nope' is not a field of Closed"),
    "a path that is none": (Step.map_over("c", ok, iterable_input="a..b"), "is not a dotted path"),
    "a state there is not": (
        StateMachineStep("c", states={"a": ok}, start_state="b", end_states=["a"], transitions=[]),
        "start_state 'b' is not a state",
    ),
    "a default that cannot be serialized": (ImportStep("c", pipeline=ok, default=threading.Lock()), "default"),
    "a fallback that is no step": (
        Step("c", echo, fallback_step=Pipeline([ok])),
        "fallback_step must be a Step, got a Pipeline",
    ),
    "too many floors": (deep(25), "is inside more than 20 containers"),
    "itself": (ImportStep("c", pipeline=containing_itself()), "contains itself: "),
}


@pytest.mark.services
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_seen_is_refused_before_it_is_sent(site, name, monkeypatch):
    """Issue 3, requirements §2.10: the step and the reason are named; nothing is recorded."""
    step, said = REFUSED[name]
    monkeypatch.setattr(bad, "refused", Pipeline([step], context_model=Closed), raising=False)
    with pytest.raises(PipelineError) as refused:
        site.client.enqueue("bad_container_pipelines:refused", "in", context={})
    told = " ".join(f"{refused.value}".split())
    assert "step 'c" in told or "step 'floor" in told
    assert said in told
    assert site.rows("SELECT count(*) AS n FROM flujo_runs WHERE reference LIKE '%%:refused'") == [{"n": 0}]


@pytest.mark.services
def test_a_step_that_falls_back_on_itself_is_refused_before_it_is_sent(site, monkeypatch):
    """M-406, U-30: the steps of the circle are named; nothing is recorded."""
    one = Step("one", echo)
    object.__setattr__(one, "fallback_step", Step("two", echo, fallback_step=one))
    monkeypatch.setattr(bad, "endless", Pipeline([one]), raising=False)
    with pytest.raises(InfiniteFallbackError, match="one → two → one"):
        site.client.enqueue("bad_container_pipelines:endless", "in")
    assert site.rows("SELECT count(*) AS n FROM flujo_runs WHERE reference LIKE '%%:endless'") == [{"n": 0}]


FAILED = {
    "no_branch": ("ExecutionError", "the condition of 'c' answered 'elsewhere'; its branches are here, true"),
    "condition_raises": ("KeyError", "condition of 'c' failed with KeyError: 'a bug'"),
    "condition_never_returns": ("TimeoutError", "condition of 'c' failed with TimeoutError: no answer within 0.5 s"),
    "condition_blocks": ("TimeoutError", "condition of 'c' failed with TimeoutError: no answer within 0.5 s"),
    "exit_raises": ("KeyError", "exit_condition of 'c' failed with KeyError"),
    "exit_never_returns": ("TimeoutError", "exit_condition of 'c' failed with TimeoutError"),
    "initial_raises": ("KeyError", "initial_input of 'c' failed with KeyError"),
    "iteration_raises": ("KeyError", "iteration_input of 'c' failed with KeyError"),
    "output_raises": ("KeyError", "output of 'c' failed with KeyError"),
    "output_cannot_travel": ("SerializationError", "the result of loop_output_mapper"),
    "body_fails": ("NonRetryableError", "Loop body failed in iteration 1 of 'c' at step 'no'"),
    "missing_items": ("PipelineError", "'scratchpad.missing' does not exist in Notes: there is no 'missing'"),
    "text_items": ("PipelineError", "the context's 'title' is a str, not an iterable of items"),
    "text_items_in_parallel": ("PipelineError", "the context's 'title' is a str, not an iterable of items"),
    "conflict": ("ContextMergeError", "branches 'a' and 'b' both changed title"),
    "merge_raises": ("KeyError", "join of 'c' failed with KeyError"),
    "merge_gives_nonsense": ("ContextMergeError", "the merge function must return a context or None, got a str"),
    "reduce_raises": ("KeyError", "join of 'c' failed with KeyError"),
    "branch_fails": ("NonRetryableError", "branch 'a' failed: Agent execution failed with NonRetryableError: no in"),
    "lanes_fail": ("NonRetryableError", "' failed: Agent execution failed with NonRetryableError: no in"),
    "all_fail": ("NonRetryableError", "branch 'a' failed: Agent execution failed with NonRetryableError: no in"),
    "selects_nonsense": ("PipelineError", "its agent must answer with names of branches, got a int"),
    "router_fails": ("NonRetryableError", "Agent execution failed with NonRetryableError: no in"),
    "import_fails": ("NonRetryableError", "import 'c' failed: Agent execution failed with NonRetryableError: no in"),
    "going_round": ("ExecutionError", "state machine 'c' visited 3 states without reaching an end state"),
    "stuck": ("ExecutionError", "state machine 'c' has no transition from state 'a'"),
    "deep": ("NonRetryableError", "branch 'a' failed: Loop body failed in iteration 1 of 'l' at step 'd': branch 'x' "),
}


@pytest.fixture(scope="module")
def busy_site(site):
    site.workers(code=Path(__file__).parent)
    return site


@pytest.mark.acceptance
@pytest.mark.parametrize("name", FAILED)
def test_what_a_worker_finds_is_a_failure_of_that_step(busy_site, name):
    """Issue 3: class, words and place reach the client; the run ends, and nothing of it is left open."""
    run = busy_site.client.enqueue(f"bad_container_pipelines:{name}", "in")
    result = run.result(timeout=60)
    type_name, said = FAILED[name]
    assert (result.run_status, result.error.type_name) == ("failed", type_name), busy_site.log()
    assert [(each.name, each.success) for each in result.step_history] == [("c", False)]
    assert said in result.step_history[0].feedback
    assert open_rows(busy_site, run.id) == [{"scopes": 0, "attempts": 0}]


def open_rows(site, run):
    return site.rows(
        """
        SELECT (SELECT count(*) FROM flujo_scopes WHERE run_id = %(run)s AND status = 'open') AS scopes,
               (SELECT count(*) FROM flujo_attempts
                WHERE run_id = %(run)s AND status IN ('ready', 'queued', 'running')) AS attempts
        """,
        run=run,
    )


LARGE = 1_000_000
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_branches_with_a_megabyte_each_share_it(engine, count):
    """C-15: the process never held more than a fraction of what as many copies would be."""
    text = Random(1).randbytes(LARGE // 2).hex()
    branches = {f"b{n}": Step("x", echo) for n in range(count)}
    made = Pipeline([Step.parallel("c", branches, reduce=len)], context_model=Notes)
    before = most_memory()
    result = engine.run(made, "in", context={"title": text})
    grown = most_memory() - before
    print(f"{grown / 1e6:.0f} MB more, for {count} branches with {LARGE / 1e6:.0f} MB each")
    assert (result.output, result.final_pipeline_context.title == text) == (count, True)
    assert grown < count * LARGE / 4


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
