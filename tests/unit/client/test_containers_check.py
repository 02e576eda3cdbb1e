"""What is refused about containers before anything is sent: all findings at once, each with its place."""

from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from pydantic import BaseModel

from flujo_client import ImportStep, LoopStep, MapStep, ParallelStep, Pipeline, PipelineContext, StateMachineStep, Step
from flujo_client.errors import MissingAgentError, PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import walk
from tests.support.builders import echo, pipeline_of

WORK = Step("work", echo)


class Book(BaseModel):
    total: int = 0
    step_outputs: dict[str, int] = {}


class Bare(BaseModel):
    pass


def stop(output, context):
    return True


async def later(*_):
    return None


def findings(*steps, has_context=True, **rest):
    with pytest.raises(PipelineError) as caught:
        check(Pipeline(list(steps), **rest), allowed=(), has_context=has_context)
    return caught.value.findings


def passes(*steps, has_context=True, **rest):
    check(Pipeline(list(steps), **rest), allowed=(), has_context=has_context)


def machine(**options):
    given = {"states": {"a": WORK, "b": WORK}, "start_state": "a", "end_states": ["b"], "transitions": []}
    return StateMachineStep("m", **{**given, **options})


def loop(**options):
    return LoopStep("l", **{"body": WORK, "exit_condition_callable": stop, **options})


def mapped(**options):
    return MapStep("m", **{"body": WORK, "iterable_input": "total", **options})


def imported(**options):
    return ImportStep("i", **{"pipeline": WORK, **options})


def chosen(branches, **options):
    return Step.branch_on("c", options.pop("condition", later), branches, **options)


GOOD = {
    "loop": loop(exit_condition_callable=later, loop_output_mapper=str, max_loops=10_000),
    "map": mapped(max_concurrency=1, on_branch_failure="ignore"),
    "no branches": Step.parallel("p", {}),
    "an empty list": Step.parallel("p", []),
    "parallel": Step.parallel("p", [WORK, WORK], reduce="union", field_mapping={"1": ["total"]}, merge_strategy=later),
    "router": Step.dynamic_parallel_branch("r", later, {"a": WORK}, context_include_keys=["total"]),
    "conditional": chosen({True: WORK, "x": WORK, 2: WORK}, default_branch_pipeline=WORK),
    "only a default": chosen({}, default_branch_pipeline=WORK),
    "import": imported(outputs=[("a.b", "total")], on_failure="continue_with_default", default={"x": 1}),
    "machine": machine(
        end_states=["b", "done"], transitions=[{"from": "*", "on": "pause", "to": "done", "when": later}]
    ),
    "a state no way leads to": machine(states={"a": WORK, "b": WORK, "alone": WORK}),
    "refinement": Step.refine_until("r", WORK, Pipeline([WORK])),
    "gathering": Step.gather("g", ["work"]),
    "one step in many places": Step.parallel("work", {"work": WORK, "body": Pipeline([WORK])}),
}


@pytest.mark.parametrize("step", GOOD.values(), ids=GOOD)
def test_what_can_run_is_let_through(step):
    passes(step, context_model=Book)


BAD = {
    "max_loops must be a whole number from 1": [
        loop(max_loops=0),
        loop(max_loops=True),
        loop(max_loops="5"),
        loop(max_loops=10**12),
    ],
    "exit_condition_callable, a NoneType, is not callable": [loop(exit_condition_callable=None)],
    "iteration_input_mapper, a int, is not callable": [loop(iteration_input_mapper=3)],
    "loop_output_mapper is a mock": [loop(loop_output_mapper=MagicMock())],
    "'l': its body has no steps": [loop(body=Pipeline([]))],
    "its body must be a Pipeline or a Step, got a function": [loop(body=echo)],
    "iterable_input 'a b' is not a dotted path": [mapped(iterable_input="a b")],
    "iterable_input '3' is not a dotted path": [mapped(iterable_input=3)],
    "iterable_input 'items.x' is not a field of Book": [mapped(iterable_input="items.x")],
    "max_concurrency must be a whole number from 1": [
        mapped(max_concurrency=0),
        Step.parallel("p", [], max_concurrency=-1),
    ],
    "on_branch_failure is for items that run in parallel": [mapped(strategy="ignore")],
    "context_include_keys is for items that run in parallel": [mapped(context_include_keys=["total"])],
    "branch 'a/b': a name must have 1 to 120": [Step.parallel("p", {"a/b": WORK}), chosen({"a/b": WORK})],
    "branch '': a name must have 1 to 120": [Step.parallel("p", {"": WORK}), chosen({"": WORK})],
    "branch 'x#1': a name": [Step.dynamic_parallel_branch("r", echo, {"x#1": WORK})],
    "branch '1': 2 of them have this name": [Step.parallel("p", {1: WORK, "1": WORK}), chosen({1: WORK, "1": WORK})],
    "branch 'true': 2 of them have this name": [chosen({True: WORK, "true": WORK})],
    "branch 'default': this name is reserved for the default branch": [
        chosen({"default": WORK}, default_branch_pipeline=WORK)
    ],
    "branch '1.5': a key must be a str, a bool or an int, got a float": [chosen({1.5: WORK})],
    "condition_callable, a str, is not callable": [chosen({"a": WORK}, condition="x")],
    "branches must be a mapping that is not empty, got a dict": [chosen({})],
    "branches must be a mapping that is not empty, got a list": [chosen([WORK])],
    "branches must be a mapping or a list, got a Step": [ParallelStep("p", branches=WORK)],
    "'p': its 'a' has no steps": [Step.parallel("p", {"a": Pipeline([])})],
    "merge_strategy 'callable' must be one of": [Step.parallel("p", [], merge_strategy="callable")],
    "merge_strategy, a int, is not callable": [Step.parallel("p", [], merge_strategy=3)],
    "on_branch_failure 'retry' must be one of ignore, propagate": [Step.parallel("p", [], on_branch_failure="retry")],
    "on_branch_failure, a function, must be one of": [Step.parallel("p", [], on_branch_failure=stop)],
    "reduce 'sum' must be one of concat, first, keys": [Step.parallel("p", [], reduce="sum")],
    "reduce, a int, is not callable": [Step.parallel("p", [], reduce=3)],
    "field_mapping names 'b', which is not a branch": [Step.parallel("p", {"a": WORK}, field_mapping={"b": ["total"]})],
    "field_mapping of 'a' 'totel' is not a field of Book": [
        Step.parallel("p", {"a": WORK}, field_mapping={"a": ["totel"]})
    ],
    "field_mapping of 'a' must be a list of field names": [
        Step.parallel("p", {"a": WORK}, field_mapping={"a": "total"})
    ],
    "field_mapping must be a mapping of branches to fields": [Step.parallel("p", {"a": WORK}, field_mapping=["a"])],
    "context_include_keys 'totel' is not a field of Book": [Step.parallel("p", [], context_include_keys=["totel"])],
    "context_include_keys must be a list of field names": [
        Step.parallel("p", [], context_include_keys="total"),
        Step.parallel("p", [], context_include_keys=["a\x00"]),
        Step.parallel("p", [], context_include_keys=3),
    ],
    "input_to 'prompt' must be one of initial_prompt": [imported(input_to="prompt")],
    "on_failure 'ignore' must be one of abort": [imported(on_failure="ignore")],
    "input_scratchpad_key '' is not a printable text": [imported(input_scratchpad_key="")],
    "input_to 'import_artifacts' is not a field of Book": [imported(inherit_context=True, input_to="both")],
    "outputs: 'total' is not a pair of dotted paths": [imported(outputs=["total"])],
    "outputs: \"('a', 'b c')\" is not a pair": [imported(outputs={"a": "b c"})],
    "outputs to 'totel' is not a field of Book": [imported(outputs=[("a", "totel")])],
    "outputs from 'a' is not a field of Bare": [
        imported(pipeline=Pipeline([WORK], context_model=Bare), outputs=[("a", "total")])
    ],
    "default: object of type object cannot be serialized": [imported(default=object())],
    "start_state 'x' is not a state": [machine(start_state="x")],
    "start_state 'done' is not a state": [machine(start_state="done", end_states=["done"])],
    "end_states 'x' is not a state": [machine(end_states=["x"])],
    "end_states, a str, is not a list": [machine(end_states="b")],
    "transitions, a dict, is not a list": [machine(transitions={})],
    "end state 'a/b': a name": [machine(end_states=["a/b"], transitions=[{"from": "a", "to": "a/b"}])],
    "transition 0: from 'x' is not a state": [machine(transitions=[{"from": "x", "to": "b"}])],
    "transition 0: to 'x' is not a state": [machine(transitions=[{"from": "*", "to": "x"}])],
    "transition 0: to 'None' is not a state": [machine(transitions=[{"from": "*"}])],
    "transition 0: on 'error' must be one of success": [machine(transitions=[{"from": "a", "to": "b", "on": "error"}])],
    "transition 0: when, a int, is not callable": [machine(transitions=[{"from": "a", "to": "b", "when": 1}])],
    "transition 0: 'if' must be one of from": [machine(transitions=[{"from": "a", "to": "b", "if": stop}])],
    "transition 0: must be a Transition or a mapping": [machine(transitions=[3])],
    "states must be a mapping": [machine(states={}), machine(states=[WORK])],
    "max_visits must be a whole number": [machine(max_visits=0)],
    "wait_for must be a list of step names": [Step.gather("g", []), Step.gather("g", [1])],
}


@pytest.mark.parametrize(("said", "step"), [(said, step) for said, steps in BAD.items() for step in steps])
def test_what_cannot_run_is_named(said, step):
    found = findings(step, context_model=Book)
    assert said in "\n".join(found)


@pytest.mark.parametrize(
    "step",
    [
        mapped(),
        Step.gather("g", ["a"]),
        imported(outputs=[("a", "b")]),
        imported(input_to="both"),
        Step.parallel("p", {"a": WORK}, context_include_keys=["total"]),
        Step.parallel("p", {"a": WORK}, field_mapping={"a": ["total"]}),
        loop(body=Step("s", echo, sink_to="x")),
    ],
)
def test_what_needs_a_context_says_so(step):
    assert "needs a context" in "\n".join(findings(step, has_context=False))


def test_gathering_needs_a_context_that_holds_outputs():
    assert "'step_outputs' is not a field of Bare" in findings(Step.gather("g", ["a"]), context_model=Bare)[0]


def test_an_imported_pipeline_has_the_context_of_its_model():
    child = Pipeline([Step("s", echo, sink_to="total")], context_model=Book)
    passes(ImportStep("i", pipeline=child), has_context=False)
    passes(child.as_step("i"), has_context=False)
    passes(ImportStep("i", pipeline=child), context_model=Bare)
    passes(child.as_step("i"), context_model=Book)
    assert "expects the context Book, but here it is Bare" in findings(child.as_step("i"), context_model=Bare)[0]


def test_an_imported_pipeline_without_a_model_has_a_context_where_the_run_has_one():
    child = ImportStep("i", pipeline=Step("s", echo, sink_to="anything"))
    passes(child, context_model=Bare)
    assert "needs a context" in findings(child, has_context=False)[0]


def test_a_body_asks_for_no_other_context_than_it_gets():
    body = Pipeline([WORK], context_model=PipelineContext)
    assert (
        "expects the context PipelineContext, but here it is Bare" in findings(loop(body=body), context_model=Bare)[0]
    )
    passes(loop(body=replace(body, context_model=BaseModel)), context_model=Bare)


def test_everything_is_found_at_once_at_any_depth_by_its_path():
    """No one mends one thing only to meet the next."""
    draft = Pipeline([Step("a#b", echo), Step("twice", echo), Step("twice", 3)])
    found = findings(Step.parallel("review", {"legal": loop(body=draft, max_loops=0), "x/y": Step("z", sink_to="q")}))
    said = "\n".join(found)
    for part in (
        "step 'review': branch 'x/y'",
        "step 'review/legal/l': max_loops",
        "step 'review/legal/l/body/twice': 2 steps",
        "step 'review/legal/l/body/twice': its agent, a int",
        "step 'review/legal/l/body/a#b': a name",
        "step 'review/x/y/z': it has no agent",
    ):
        assert part in said
    assert len(found) == 6


def test_only_missing_agents_have_an_error_of_their_own_inside_containers_too():
    with pytest.raises(MissingAgentError, match=r"step 'l/body/s': it has no agent; step 'r': it has no agent"):
        passes(loop(body=Step("s")), Step.dynamic_parallel_branch("r", None, {"a": WORK}))


@pytest.mark.parametrize(
    ("make", "said", "way_out"),
    [
        (lambda: Pipeline(WORK), "`steps` must be a list of steps, got a Step", "write Pipeline([step])"),
        (lambda: Pipeline(WORK, WORK), "`steps` must be a list of steps, got a Step", "a >> b"),
        (lambda: Pipeline(echo), "got the function echo", 'write Step("echo", echo), or @step'),
        (lambda: Pipeline("shop:pipeline"), "got a str", "Pipeline.from_yaml"),
        (lambda: Pipeline([WORK, echo]), "steps[1] must be a Step, got the function echo", "@step"),
        (lambda: Pipeline([Pipeline([WORK])]), "steps[0] must be a Step, got a Pipeline", "as_step(name)"),
        (lambda: Pipeline([[WORK]]), "steps[0] must be a Step, got a list", "join them with >>"),
        (lambda: Pipeline([lambda x: x]), "steps[0] must be a Step", 'write Step("name", function)'),
        (lambda: WORK >> echo, "steps[1] must be a Step, got the function echo", "@step"),
        (lambda: WORK >> WORK >> 3, "steps[2] must be a Step, got an int", ""),
        (
            lambda: Step(echo),
            "the first argument of a step must be its name, got the function echo",
            'Step("echo", echo)',
        ),
    ],
)
def test_what_stands_among_steps_is_a_step(make, said, way_out):
    with pytest.raises(PipelineError) as refused:
        make()
    assert said in str(refused.value)
    assert way_out in str(refused.value)


def of_none():
    return True


def of_one(output):
    return True


def of_three(output, context, third):
    return True


def with_own_input(output, context, original_input):
    return output


def test_a_function_takes_what_it_is_called_with():
    wrong = {
        "exit_condition_callable is called with (last_output, context), but takes ()": loop(
            exit_condition_callable=of_none
        ),
        "loop_output_mapper is called with (last_output, context), but takes (output, context, third)": loop(
            loop_output_mapper=of_three
        ),
        "iteration_input_mapper is called with (output, context, index)": loop(iteration_input_mapper=of_one),
        "condition_callable is called with (output, context), but takes ()": Step.branch_on("c", of_none, {"a": WORK}),
        "reduce is called with (outputs)": Step.parallel("p", {"a": WORK}, reduce=of_three),
        "merge_strategy is called with (context, branch_contexts)": Step.parallel(
            "p", {"a": WORK}, merge_strategy=of_one
        ),
        "its agent, the function of_none, takes no argument": Step("s", of_none),
    }
    for said, step in wrong.items():
        assert said in findings(step)[0]
    passes(loop(loop_output_mapper=with_own_input, initial_input_to_loop_body_mapper=lambda *given: given))


def test_a_function_in_a_containers_place_is_told_when_it_is_validated_too():
    pipeline = Pipeline([Step.parallel("p", {"a": echo})])
    with pytest.raises(
        PipelineError, match=r"its 'a' must be a Pipeline or a Step, got a function; write Step\(\"echo\""
    ):
        pipeline.validate_graph(raise_on_error=True)


def itself():
    pipeline = Pipeline([WORK], name="orders")
    pipeline.steps.append(loop(body=Pipeline([pipeline.as_step("again")], name="inner")))
    return pipeline


def test_a_pipeline_that_contains_itself_is_named_with_its_cycle():
    with pytest.raises(PipelineError, match=r"step 'l/body/again': its body contains itself: orders → inner → orders"):
        check(itself(), allowed=())


def test_a_step_that_contains_itself_is_named_with_its_cycle():
    branches = {"a": WORK}
    step = Step.parallel("p", branches)
    branches["b"] = step
    assert "step 'p/b/p': its 'b' contains itself: p → p" in findings(step)


@pytest.mark.parametrize("ask", [compile_plan, lambda pipeline: list(walk(pipeline))])
def test_what_has_no_end_is_neither_compiled_nor_walked(ask):
    """A worker may hold other code than was checked."""
    with pytest.raises(PipelineError, match="is inside more than 20 containers"):
        ask(itself())


def nested(depth, body=WORK):
    for _ in range(depth):
        body = loop(body=body)
    return body


def test_containers_stand_at_most_20_deep():
    passes(nested(20))
    assert "its body is inside more than 20 containers" in findings(nested(21))[0]
    assert len(list(walk(nested(20)))) == 21
    with pytest.raises(PipelineError, match="l/body' is inside more than 20 containers"):
        list(walk(nested(21)))


def test_the_names_above_a_step_are_bounded_together():
    long = replace(WORK, name="n" * 120)
    body = long
    for _ in range(8):
        body = replace(loop(body=body), name="n" * 120)
    assert "more than 1,000 bytes together" in findings(body)[0]


@pytest.mark.large
def test_a_pipeline_has_at_most_10_000_steps():
    passes(*pipeline_of(*map(str, range(9_999))).steps, WORK)
    [found] = findings(*pipeline_of(*map(str, range(10_000))).steps, WORK)
    assert "more than 10,000 steps" in found


@pytest.mark.large
def test_what_grows_by_standing_twice_is_counted_and_not_walked_to_its_end():
    """2^20 steps of 20 objects."""
    body = WORK
    for _ in range(20):
        body = Step.parallel("p", {"a": body, "b": body})
    assert "more than 10,000 steps" in findings(body)[0]
    with pytest.raises(PipelineError, match="more than 10,000 steps"):
        compile_plan(Pipeline([body]))
