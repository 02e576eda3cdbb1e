"""What differs between two plans in words, and whether a run that stands somewhere may continue under the other one (ADR 37)."""

from dataclasses import replace

import pytest
from pydantic import BaseModel

from flujo_client import (
    CacheStep,
    ConditionalStep,
    HumanInTheLoopStep,
    LoopStep,
    MapStep,
    ParallelStep,
    Pipeline,
    Step,
    StepConfig,
)
from flujo_client.contract.carry_on import AttemptPlace, RunPosition, RunState, ScopePlace, compatible
from flujo_client.pipeline.compile import compile_plan
from flujo_client.plan.plan import Plan
from flujo_client.plan.plan_difference import differences


def work(data):
    return data


def other(data):
    return data


def done(_output, _context):
    return True


class OtherNotes(BaseModel):
    """Another one."""


class Notes(BaseModel):
    text: str = ""


def plan(*steps, **options) -> Plan:
    return compile_plan(Pipeline(list(steps), **options))


def step(name, agent=work, **options) -> Step:
    return Step(name, agent, **options)


def loop(*body, **options) -> LoopStep:
    return LoopStep("loop", body=Pipeline(list(body)), exit_condition_callable=done, **{"max_loops": 3, **options})


def stands(*scopes, attempts=(), root="") -> RunState:
    """A run with these scopes, each `address kind status cursor`, and attempts, each `address step number kind status`."""
    places = []
    for text in scopes:
        address, kind, status, cursor = text.split()
        places.append(ScopePlace("" if address == "." else address, kind, status, int(cursor), 0))
    rows = []
    for text in attempts:
        address, name, number, kind, status = text.split()
        address = "" if address == "." else address
        rows.append(AttemptPlace(f"run:{address}:{name}:{number}", address, name, int(number), kind, status, 1))
    return RunState("run", "m:p", "f", "running", root, "q", tuple(places), tuple(rows))


def at(cursor, name, *, kind="step", status="ready", number=1) -> RunState:
    return stands(f". sequence open {cursor}", attempts=[f". {name} {number} {kind} {status}"])


def rules(old, new, state, **options) -> set[str]:
    return {each.rule for each in compatible(old, new, state, **options)}


THREE = (step("a"), step("b"), step("c"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (THREE, THREE, []),
        (THREE, (step("a"), step("b"), step("x"), step("c")), ["step 'x' was added"]),
        (THREE, (step("a"), step("c")), ["step 'b' was removed"]),
        (THREE, (step("a"), step("bee"), step("c")), ["step 'b' was renamed to 'bee'"]),
        (THREE, (step("a"), step("c"), step("b")), ["step 'c' was moved"]),
        (
            THREE,
            (step("a", config=StepConfig(timeout_s=3)), *THREE[1:]),
            ["step 'a': timeout changed from none to 3.0"],
        ),
        (
            THREE,
            (step("a", config=StepConfig(max_retries=4)), *THREE[1:]),
            ["step 'a': number of attempts changed from 2 to 5"],
        ),
        (
            (loop(step("a")),),
            (loop(step("a", sink_to="x")),),
            ["step 'loop/body/a': sink_to changed from none to 'x'"],
        ),
        (
            (ParallelStep("p", branches={"x": step("a")}),),
            (ParallelStep("p", branches={"x": step("a"), "y": step("a")}),),
            ["step 'p': 'y' was added"],
        ),
    ],
)
def test_differences_are_told_in_words(old, new, words):
    assert list(map(str, differences(plan(*old), plan(*new)))) == words


def test_the_pipeline_s_own_options_differ():
    changed = differences(plan(step("a")), plan(step("a"), version="2", context_model=Notes))
    assert [each.aspect for each in changed] == ["version", "context_model"]


def test_a_difference_is_before_at_or_after_where_the_run_stands():
    old = plan(*THREE)
    new = plan(*(step(name, other) for name in "abc"))
    where = RunPosition(old, at(1, "b"))
    assert [where.position(each) for each in differences(old, new)] == ["before", "at", "after"]


@pytest.mark.parametrize("state", ["ready", "queued", "running"])
def test_what_is_still_to_run_may_change_freely(state):
    old, here = plan(*THREE), at(1, "b", status=state)
    for rest in [
        (step("b", other), step("c")),
        (step("x"), step("b"), step("c")),
        (step("c"),),
        (step("c"), step("b")),
        (loop(step("b")),),
        (step("b", sink_to="z", config=StepConfig(timeout_s=1)),),
    ]:
        assert not compatible(old, plan(step("a"), *rest), here, mine="run::b:1")


@pytest.mark.parametrize(
    ("first", "broken"),
    [
        ((step("a", other),), set()),
        ((step("a", config=StepConfig(timeout_s=1, max_retries=9)),), set()),
        ((step("x"),), set()),
        ((step("a", sink_to="z"),), {"merged step"}),
        ((step("x"), step("a")), {"merged step"}),
        ((), {"merged step"}),
        ((loop(step("a")),), {"merged step"}),
    ],
)
def test_what_was_merged_keeps_its_steps_and_results(first, broken):
    assert rules(plan(*THREE), plan(*first, step("b"), step("c")), at(1, "b")) == broken


def test_a_renamed_merged_step_is_refused_where_a_template_names_it():
    reads = step("b", input="{{ steps.x }}")
    assert rules(plan(step("a"), reads), plan(step("x"), reads), at(1, "b")) == {"merged step"}


def test_a_run_that_stands_where_nothing_is_left_is_refused():
    assert rules(plan(*THREE), plan(step("a"), step("b")), at(2, "c")) == {"nothing left"}


def test_a_step_that_runs_elsewhere_holds_the_run():
    old, new = plan(*THREE), plan(*THREE, step("d"))
    assert rules(old, new, at(0, "a", status="running")) == {"running"}
    assert rules(old, new, at(0, "a", status="running"), mine="run::a:1") == set()


def test_a_question_to_a_person_keeps_its_step():
    old = plan(HumanInTheLoopStep("ask", "Go on?"), step("b"))
    here = at(0, "ask", kind="resume", status="paused")
    assert rules(old, plan(HumanInTheLoopStep("ask", "Go on?", input_schema=Notes), step("b")), here) == {
        "open question"
    }
    assert rules(old, plan(step("b")), here) == {"open question"}
    assert rules(old, plan(HumanInTheLoopStep("ask", "Really?"), step("b", other), step("c")), here) == set()


IN_LOOP = stands(
    ". sequence open 0", "loop loop open 2", "loop#1 sequence succeeded 1", "loop#2 sequence open 1",
    attempts=["loop#2 b 1 step ready"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "options", "broken"),
    [
        ((step("a"), step("b", other)), {}, set()),
        ((step("a"), step("b"), step("c")), {}, {"merged step"}),
        ((step("a"), step("x")), {}, set()),
        ((step("a"), step("b", sink_to="z")), {}, {"merged step"}),
        ((step("a"), step("b")), {"max_loops": 9}, {"open step"}),
    ],
)
def test_a_body_that_has_run_once_keeps_its_steps(body, options, broken):
    assert rules(plan(loop(step("a"), step("b"))), plan(loop(*body, **options)), IN_LOOP) == broken


def test_a_body_in_its_first_round_may_change_behind_the_run():
    here = stands(". sequence open 0", "loop loop open 1", "loop#1 sequence open 0", attempts=["loop#1 a 1 step ready"])
    assert not compatible(plan(loop(step("a"))), plan(loop(step("a", sink_to="z"), step("b"))), here)


def test_branches_of_an_open_fan_out_stay_and_may_change_where_they_have_not_been():
    def fan(**branches):
        return plan(ParallelStep("p", branches={name: Pipeline(list(each)) for name, each in branches.items()}))

    here = stands(
        ". sequence open 0", "p parallel open 0", "p/x sequence open 1", "p/y sequence succeeded 1",
        attempts=["p/x b 1 step queued"],
    )  # fmt: skip
    old = fan(x=(step("a"), step("b")), y=(step("c"),))
    assert rules(old, fan(x=(step("a"), step("b"))), here) == {"open fan-out"}
    assert rules(old, fan(x=(step("a"), step("b"), step("n")), y=(step("c"),)), here) == set()
    assert rules(old, fan(x=(step("a"), step("b")), y=(step("c"), step("n"))), here) == {"merged step"}


def test_an_unchosen_path_may_change():
    def pick(**branches):
        return plan(ConditionalStep("if", condition_callable=lambda _output, _context: "yes", branches=branches))

    here = stands(
        ". sequence open 0", "if conditional open 0", "if/yes sequence open 0", attempts=["if/yes a 1 step ready"]
    )
    old = pick(yes=step("a"), no=step("b"))
    assert rules(old, pick(yes=step("a")), here) == set()
    assert rules(old, pick(no=step("b")), here) == {"merged step"}
    assert rules(old, pick(yes=step("a"), no=step("x"), maybe=step("c")), here) == set()


def test_items_of_a_map_share_what_the_furthest_has_merged():
    def each(*body):
        return plan(MapStep("each", pipeline_to_run=Pipeline(list(body)), iterable_input="items"))

    here = stands(
        ". sequence open 0", "each map open 1", "each#1 sequence open 1", "each#2 sequence open 0",
        attempts=["each#1 b 1 step ready"],
    )  # fmt: skip
    old = each(step("a"), step("b"))
    assert rules(old, each(step("a"), step("n"), step("b")), here) == set()
    assert rules(old, each(step("n"), step("a"), step("b")), here) == {"merged step"}


def test_what_an_open_cache_keeps_is_of_one_code():
    here = stands(". sequence open 0", "c cache open 0", "c/body sequence open 0", attempts=["c/body a 1 step ready"])
    old, new = (plan(CacheStep("c", wrapped_step=step("a", agent))) for agent in (work, other))
    assert rules(old, new, here) == {"open cache"}


def test_a_context_model_that_comes_or_goes_is_refused():
    """Whether a context fits another model is seen when it is read."""
    with_one, without = plan(step("a"), context_model=Notes), plan(step("a"))
    assert rules(without, with_one, at(0, "a")) == rules(with_one, without, at(0, "a")) == {"context model"}
    assert rules(with_one, plan(step("a"), context_model=OtherNotes), at(0, "a")) == set()


def test_a_child_run_is_judged_by_its_own_part():
    def outer(first, inner):
        return plan(first, Pipeline([inner], name="inner").as_step("in"), step("last"))

    child = stands("in/body sequence open 0", attempts=["in/body i 1 step ready"], root="in/body")
    old = outer(step("a"), step("i"))
    assert not compatible(old, outer(step("a", sink_to="z"), step("i", other)), child)
    parent = stands(". sequence open 1", "in nested open 0")
    assert not compatible(old, outer(step("a"), step("i", sink_to="z")), parent)


def test_equal_plans_are_always_compatible():
    old = plan(loop(step("a"), step("b")))
    assert not compatible(old, replace(old), IN_LOOP)
