"""Routers, through the engine in one process: what an agent may select, and what it writes and spends."""

import pytest
from container_parts import (
    SPENT,
    TWICE,
    Flaky,
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
    step,
)

from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.agents.answer import AgentAnswer

pytestmark = pytest.mark.engine(kind=WatchedEngine)


def route(agent, branches=None, **options):
    branches = branches or {name: step(f"in {name}", note(**{field: name})) for name, field in FIELDS.items()}
    return Step.dynamic_parallel_branch("route", agent, branches, **options)


FIELDS = {"a": "title", "b": "items", "c": "seen"}


def says(names):
    return lambda data: names


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        (["a", "c"], ["a", "c"]),
        (["c", "a"], ["a", "c"]),
        (("b",), ["b"]),
        ({"b"}, ["b"]),
        ("b", ["b"]),
        (["a", "a", "b", "a"], ["a", "b"]),
        (["nobody", "b"], ["b"]),
        ("nobody", []),
        ([], []),
    ],
)
def test_the_named_branches_run(engine, said, chosen):
    """SYS-14, requirements §2.3: one name or several, each once, in declared order; unknown ones are left out; none is a success."""
    branches = {name: step(f"in {name}") for name in "abc"}
    result = engine.run(bare(route(says(said), branches), step("after")), "in")
    found = at(result, "route")
    assert (found.success, found.output) == (True, dict.fromkeys(chosen, "in"))
    assert found.metadata_["executed_branches"] == [each.name for each in found.step_history] == chosen
    assert result.output == found.output


@pytest.mark.parametrize("said", [{"a": True}, 5, None, [1], [["a"]]])
def test_what_names_no_branches_fails_the_router(engine, said):
    """Requirements §2.3: its agent is not asked again, for it did not fail."""
    calls = []

    def agent(data):
        calls.append(data)
        return said

    made = route(agent, {"a": step("x")}, config=StepConfig(max_retries=3))
    result = engine.run(bare(made, step("after")), "in")
    assert_attributed(
        engine,
        result,
        "selection of 'route'",
        "PipelineError",
        f"must answer with names of branches, got a {type(said).__name__}",
    )
    assert len(calls) == 1
    assert [each.name for each in result.step_history] == ["route"]


def test_what_the_agent_and_its_branches_write_is_seen_downstream(engine):
    """M-284, C-14: the agent's own writes by its branches too."""

    def agent(data, *, context):
        context.count = 7
        return ["a", "b"]

    branches = {
        "a": step("x", lambda data, context: setattr(context, "title", f"a saw {context.count}")),
        "b": step("y", note(items=["b"])),
        "c": step("z", note(seen=["never"])),
    }
    after = step("after", lambda data, context: (context.count, context.title, context.items, context.seen))
    result = engine.run(of(route(agent, branches), after), "in")
    assert result.output == (7, "a saw 7", ["b"], [])
    assert result.final_pipeline_context.step_outputs["route"] == {"a": None, "b": "in"}


def test_what_an_agent_wrote_is_not_kept_when_its_selection_is_none(engine):
    """Law 4: a node that failed changes nothing."""

    def agent(data, *, context):
        context.count = 7
        return 5

    assert engine.run(of(route(agent)), "in").final_pipeline_context.count == 0


def test_an_agent_is_tried_again(engine):
    """M-405, with its own config."""

    class Router(Flaky):
        def run(self, data):
            super().run(data)
            return ["b"]

    agent = Router(1)
    result = engine.run(bare(route(agent, {"b": step("x")}, config=TWICE)), "in")
    assert (agent.calls, result.output) == (2, {"b": "in"})
    assert at(result, "route").attempts == 2


def test_an_agent_that_fails_permanently_fails_the_router(engine):
    result = engine.run(bare(route(fails), step("after")), "in", context={})
    assert_attributed(engine, result, "Agent execution failed", "NonRetryableError", "no in")
    assert [each.name for each in result.step_history] == ["route"]


def test_what_the_agent_spent_is_in_the_totals(engine):
    """Requirements §2.3: once, beside that of its branches."""
    made = route(
        lambda data: AgentAnswer(["a", "b"], SPENT), {"a": step("x", paid), "b": step("y"), "c": step("z", paid)}
    )
    result = engine.run(bare(made), "in")
    found = at(result, "route")
    assert (result.total_cost_usd, result.total_tokens) == (0.5, 30)
    assert (found.cost_usd, found.token_counts) == (0.5, 30)


def test_branches_get_the_routers_input_and_its_options(engine):
    """The fan-out's options are a parallel's."""
    branches = {"a": step("x", more), "b": step("no", fails), "c": step("y", more)}
    made = route(says(["a", "b", "c"]), branches, on_branch_failure="ignore", max_concurrency=1, reduce="keys")
    result = engine.run(bare(made), 1)
    assert (result.output, engine.most["route"]) == (["a", "b", "c"], 1)
    assert scopes(engine, result)["route/b"] == "failed"


def test_a_failing_branch_fails_the_router(engine):
    result = engine.run(bare(route(says("a"), {"a": step("no", fails)})), "in")
    assert_attributed(engine, result, "branch 'a' failed", "NonRetryableError", "no in")


def test_an_agents_abort_ends_the_run(engine):
    """C-23."""

    def agent(data):
        raise PipelineAbortSignal("enough")

    assert engine.run(bare(route(agent)), "in", context={}).error.code == "PIPELINE_ABORT"


def test_a_router_may_head_a_branch_and_a_body(engine):
    """M-285: it is performed at once there, with no start in front of it."""
    inner = route(says(["a"]), {"a": step("x", more)}, reduce="first")
    made = Step.parallel("fan", {"r": Step.loop_until("loop", inner, lambda output, _: output >= 3), "s": inner})
    result = engine.run(bare(made), 0)
    assert result.output == {"r": 3, "s": 1}
