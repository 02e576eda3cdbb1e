"""What users write to loop, branch, choose and nest: names, aliases, rules, and what deciding is told."""

import asyncio
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import flujo_client
from flujo_client import (
    BranchFailureStrategy,
    ConditionalStep,
    DynamicParallelRouterStep,
    ImportStep,
    LoopStep,
    MapStep,
    MergeStrategy,
    ParallelStep,
    Pipeline,
    PipelineContext,
    Refinement,
    RefinementCheck,
    StateMachineStep,
    Step,
    StepConfig,
    Transition,
)
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.conditional import resolve_key
from flujo_client.pipeline.container import Container
from tests.support.builders import echo

WORK = Step("work", echo)
OTHER = Pipeline([Step("first", echo), Step("second", echo)])
FAN_OUT = {
    "strategy": "context_update",
    "on_failure": "propagate",
    "include": None,
    "max_concurrency": None,
    "fields": None,
    "ignore_names": False,
    "reduce": None,
    "functions": [],
}


class Book(BaseModel):
    total: int = 0


def stop(output, context):
    return True


async def later(*_):
    return None


MACHINE = {
    "states": {"draft": WORK, "review": OTHER},
    "start_state": "draft",
    "end_states": ["done"],
    "transitions": [Transition("draft", "review"), {"from": "*", "to": "done", "on": "failure", "when": stop}],
}


def test_a_loop_tells_its_body_its_bounds_and_its_functions():
    """§2.3: `LoopStep`; mappers may be async."""
    loop = Step.loop_until("again", WORK, stop, iteration_input_mapper=later, loop_output_mapper=later)
    assert loop.bodies() == {"body": WORK}
    assert loop.rules() == {
        "max_loops": 5,
        "fails_at_max": False,
        "functions": ["exit_condition", "iteration_input", "output"],
    }
    assert loop.functions() == {"exit_condition": stop, "iteration_input": later, "output": later}


def test_a_map_tells_where_its_items_are():
    step = Step.map_over("each", WORK, iterable_input="scratchpad.items")
    assert step.bodies() == {"body": WORK}
    assert step.rules() == {**FAN_OUT, "ignore_names": True, "iterable": "scratchpad.items", "parallel": False}


@pytest.mark.parametrize("options", [{"parallel": True}, {"max_concurrency": 2}])
def test_a_map_is_a_fan_out_when_asked_or_bounded(options):
    assert Step.map_over("each", WORK, iterable_input="items", **options).rules()["parallel"] is True


def test_a_parallel_tells_how_its_branches_come_together():
    """§2.3: `ParallelStep`, its defaults."""
    step = Step.parallel("side", {"a": WORK, "b": OTHER})
    assert step.bodies() == {"a": WORK, "b": OTHER}
    assert step.rules() == FAN_OUT


def test_a_parallel_is_told_by_values_and_functions_too():
    step = Step.parallel(
        "side",
        {"a": WORK},
        merge_strategy=later,
        on_branch_failure="ignore",
        reduce=stop,
        field_mapping={"a": ["y", "x"]},
    )
    told = {"strategy": "callable", "on_failure": "ignore", "reduce": "callable", "fields": {"a": ["x", "y"]}}
    assert step.rules() == {**FAN_OUT, **told, "functions": ["merge", "reduce"]}
    assert step.functions() == {"merge": later, "reduce": stop}
    assert replace(step, reduce="union", merge_strategy=MergeStrategy.KEEP_FIRST).rules()["functions"] == []


def test_a_list_of_branches_is_named_by_its_indices():
    """C-17."""
    assert Step.parallel("side", [WORK, OTHER]).bodies() == {"0": WORK, "1": OTHER}


def test_a_router_is_performed_like_a_step_and_fans_out_like_a_parallel():
    """C-14: what its branches write is merged by default."""
    config = StepConfig(max_retries=3)
    step = Step.dynamic_parallel_branch("route", echo, {"a": WORK}, config=config, queue="gpu")
    assert (step.agent, step.config, step.queue) == (echo, config, "gpu")
    assert step.rules() == FAN_OUT
    assert replace(step, router_agent=later).agent is later


def test_a_conditional_tells_its_keys_with_their_types():
    step = Step.branch_on("choose", stop, {True: WORK, "x": OTHER, 7: WORK}, default_branch_pipeline=OTHER)
    assert step.bodies() == {"true": WORK, "x": OTHER, "7": WORK, "default": OTHER}
    told = {"true": "bool", "x": "str", "7": "int"}
    assert step.rules() == {"keys": told, "default": True, "functions": ["condition"]}


@pytest.mark.parametrize(
    ("keys", "answer", "key"),
    [
        ([True, False], True, "true"),
        ([True, False], False, "false"),
        (["true", "false"], True, "true"),
        (["true", "false"], False, "false"),
        (["true"], "true", "true"),
        ([True], "true", None),
        ([True], 1, None),
        (["true"], 1, None),
        ([1], 1, "1"),
        ([1], True, None),
        ([1], "1", None),
        (["1"], 1, None),
        ([0], False, None),
        (["a"], "a", "a"),
        (["a"], BranchFailureStrategy.IGNORE, None),
        (["ignore"], BranchFailureStrategy.IGNORE, "ignore"),
        (["a"], "b", None),
        (["a"], None, None),
        (["1.0"], 1.0, None),
        (["a"], ["a"], None),
    ],
)
def test_an_answer_means_the_key_of_its_own_type(keys, answer, key):
    """§2.3: a bool means "true" and "false" as well; 1 is never True."""
    assert resolve_key(Step.branch_on("c", stop, dict.fromkeys(keys, WORK)).rules(), answer) == key


def test_an_import_tells_what_goes_in_and_what_comes_out():
    step = ImportStep("sub", pipeline=replace(OTHER, context_model=Book), outputs={"total": "a.b"}, default=(1,))
    assert step.rules() == {
        "inherit_context": False,
        "input_to": "initial_prompt",
        "key": "initial_input",
        "outputs": [["total", "a.b"]],
        "on_failure": "abort",
        "keeps_input": False,
        "default": {"$": "tuple", "v": [1]},
        "context_model": f"{__name__}:Book",
        "functions": [],
    }


def test_a_pipeline_is_a_step_of_another_on_the_same_context():
    step = OTHER.as_step("sub", on_failure="skip")
    assert (step.name, step.bodies()) == ("sub", {"body": OTHER})
    assert (step.inherit_context, step.rules()["outputs"], step.rules()["on_failure"]) == (True, None, "skip")


def test_a_machine_tells_its_states_and_the_way_between_them():
    step = StateMachineStep("life", **MACHINE)
    assert step.bodies() == {"draft": WORK, "review": OTHER}
    assert step.rules() == {
        "start": "draft",
        "ends": ["done"],
        "transitions": [
            {"from": "draft", "on": "success", "to": "review", "when": False},
            {"from": "*", "on": "failure", "to": "done", "when": True},
        ],
        "max_visits": 100,
        "functions": ["when"],
    }
    assert step.functions() == {"when": {1: stop}}


@pytest.mark.parametrize(
    ("kind", "given", "names"),
    [
        (
            LoopStep,
            {"exit_condition_callable": stop, "body": WORK, "max_iterations": 3},
            {"body": "loop_body_pipeline", "max_iterations": "max_loops"},
        ),
        (
            MapStep,
            {"iterable_input": "x", "body": WORK, "strategy": "ignore"},
            {"body": "pipeline_to_run", "strategy": "on_branch_failure"},
        ),
        (ConditionalStep, {"condition": stop, "branches": {}}, {"condition": "condition_callable"}),
        (ParallelStep, {"branches": {}, "strategy": "ignore"}, {"strategy": "on_branch_failure"}),
        (
            DynamicParallelRouterStep,
            {"branches": {}, "router_agent": echo, "strategy": "ignore"},
            {"strategy": "on_branch_failure"},
        ),
    ],
)
def test_second_names_are_taken_and_can_be_read(kind, given, names):
    """C-17: on construction, and as read-only properties."""
    step = kind("x", **given)
    for other, name in names.items():
        assert getattr(step, other) is getattr(step, name) is given[other]
        with pytest.raises(AttributeError):
            setattr(step, other, None)
        with pytest.raises(TypeError, match=f"both '{name}' and its alias '{other}'"):
            kind("x", **given, **{name: None})


@pytest.mark.parametrize("option", ["agent", "plugins", "validators", "updates_context", "sink_to", "queue"])
def test_what_concerns_agents_is_not_taken_by_a_container(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        Step.parallel("side", [WORK], **{option: None})


def refinement(*, complete):
    return Refinement(artifact="text", check=RefinementCheck(is_complete=complete, feedback="shorter"))


def test_a_refinement_is_a_loop_of_a_generator_and_a_critic():
    loop = Step.refine_until("refine", WORK, OTHER, max_refinements=3)
    generator, critic = loop.bodies()["body"].steps
    assert (generator, critic.bodies(), loop.rules()["max_loops"]) == (WORK, {"body": OTHER}, 3)
    assert (critic.rules()["keeps_input"], critic.rules()["inherit_context"]) == (True, True)


@pytest.mark.parametrize("body", [OTHER, Step("critic", echo)])
def test_a_generator_of_many_steps_or_of_the_critics_name_is_nested(body):
    generator, _ = Step.refine_until("refine", body, WORK).bodies()["body"].steps
    assert (generator.name, generator.bodies()) == ("generator", {"body": body})
    assert generator.rules()["inherit_context"] is True


def test_a_refinement_ends_when_its_critic_has_nothing_to_add():
    """§2.3: the last artifact if complete, else the check."""
    asked = Step.refine_until("refine", WORK, WORK).functions()
    good, bad = refinement(complete=True), refinement(complete=False)
    assert (asked["exit_condition"](good, None), asked["exit_condition"](bad, None)) == (True, False)
    assert (asked["output"](good, None), asked["output"](bad, None)) == ("text", bad.check)


def test_the_critics_feedback_goes_to_the_generator():
    plain = Step.refine_until("refine", WORK, WORK).functions()["iteration_input"]
    mapped = Step.refine_until("refine", WORK, WORK, feedback_mapper=lambda asked, check: f"{asked}: {check.feedback}")
    given = (refinement(complete=False), None, 1)
    assert plain(*given, original_input="topic") == {"original_input": "topic", "feedback": "shorter"}
    assert mapped.functions()["iteration_input"](*given, original_input="topic") == "topic: shorter"


def test_an_async_feedback_mapper_gives_something_to_await():
    async def mapper(original_input, check):
        return original_input

    asked = Step.refine_until("refine", WORK, WORK, feedback_mapper=mapper).functions()["iteration_input"]
    assert asyncio.run(asked(refinement(complete=False), None, 1, original_input="topic")) == "topic"


def test_a_check_may_be_a_mapping_like_one():
    assert Refinement(artifact=1, check={"is_complete": True}).check == RefinementCheck(is_complete=True)
    with pytest.raises(ValidationError):
        Refinement(artifact=1, check="fine")


def test_gathering_collects_what_steps_have_left():
    context = PipelineContext(step_outputs={"a": 1, "b": None, "c": 3})
    assert Step.gather("all", ["b", "a"]).agent.run("ignored", context=context) == {"b": None, "a": 1}


@pytest.mark.parametrize("context", [PipelineContext(step_outputs={"a": 1}), Book(), None])
def test_gathering_names_what_is_missing(context):
    with pytest.raises(NonRetryableError, match="no output of 'b'"):
        Step.gather("all", ["a", "b"] if isinstance(context, PipelineContext) else ["b"]).agent.run(1, context=context)


REFERENCE = (Path(__file__).parents[3] / "docs/reference/pipelines.md").read_text(encoding="utf-8")
SECTIONS = {
    "Loop": LoopStep,
    "Map": MapStep,
    "Parallel": ParallelStep,
    "Conditional": ConditionalStep,
    "Nested pipeline": ImportStep,
    "State machine": StateMachineStep,
}


def listed(heading):
    section = REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return {row[0].strip("`"): row[1] for row in rows if len(row) == 3 and row[0].startswith("`")}


def own(kind, *, base=Container):
    known = {each.name for each in fields(base) if each.init}
    return {each.name: each.default for each in fields(kind) if each.init and each.name not in known}


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_reference_lists_every_option(heading):
    assert set(listed(heading)) == set(own(SECTIONS[heading]))


def test_the_reference_lists_what_a_router_takes_besides():
    assert set(listed("Router")) == {"config", *own(DynamicParallelRouterStep, base=ParallelStep)}


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_reference_tells_the_defaults(heading):
    for name, default in own(SECTIONS[heading]).items():
        said = re.match(r"(?:`([^`]*)`)?", listed(heading)[name])[1]
        assert said == (None if "MISSING" in repr(default) else str(default)), name


def test_the_reference_lists_every_value_of_the_strategies():
    for value in (*MergeStrategy, *BranchFailureStrategy):
        assert f"`{value}`" in REFERENCE


def test_every_container_is_public():
    kinds = {kind.__name__ for kind in SECTIONS.values()} | {"DynamicParallelRouterStep", "Transition"}
    assert kinds <= set(flujo_client.__all__)


def test_a_console_shows_what_was_given_and_no_default():
    step = Step("greet", str.upper, config=StepConfig(max_retries=3))
    assert repr(step) == "Step(name='greet', agent=upper, config=StepConfig(max_retries=3))"
    secret = object()
    assert repr(Pipeline([Step("a", str), Step.parallel("p", {"b": Step("b", str)})], name="n", resources=secret)) == (
        "Pipeline(steps=[Step(name='a', agent=str), ParallelStep(name='p', branches={'b': Step(name='b', agent=str)})], name='n')"
    )
