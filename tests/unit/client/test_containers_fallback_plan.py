"""A step with a fallback as the plan, the walk, the check and the results know it (SYS-10)."""

import pytest
from recorded import C, Recorder, S, run

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.contract.read import read_result
from flujo_client.errors import FlujoError, InfiniteFallbackError, MissingAgentError, PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import walk
from flujo_client.plan.plan import Plan
from flujo_client.serial import Resolver, dumps, loads
from tests.support.builders import echo

WORK, OTHER = Step("work", echo), Step("other", echo, config=StepConfig(max_retries=5))
BOTH = WORK.fallback(OTHER)


def until(output, context):
    return True


def compiled(*steps):
    return compile_plan(Pipeline(list(steps)))


def checks(*steps, **rest):
    check(Pipeline(list(steps), **rest), allowed=())


def chained(*names):
    """Steps each of which is the fallback of the one before, and the first one of the last."""
    steps = [Step(name, echo) for name in names]
    for one, other in zip(steps, [*steps[1:], steps[0]], strict=True):
        object.__setattr__(one, "fallback_step", other)
    return steps[0]


def test_it_is_a_container_of_both_under_the_steps_name():
    """C-19."""
    [node] = compiled(BOTH).nodes
    [primary], [fallback] = node.bodies["primary"], node.bodies["fallback"]
    assert (node.name, node.kind, node.path) == ("work", "fallback", "work")
    assert (primary.path, fallback.path) == ("work/primary/work", "work/fallback/other")
    assert [path for path, _ in walk(Pipeline([BOTH]))] == ["work", primary.path, fallback.path]
    assert primary == compiled(WORK).nodes[0].__class__.from_tree(compiled(WORK).nodes[0].to_tree(), "work/primary/")


def test_its_addresses_are_found_and_it_survives_a_journey():
    plan = compiled(BOTH)
    assert Plan.from_tree(loads(dumps(plan.to_tree()))) == plan
    assert [node.name for node in plan.locate("work/fallback").nodes] == ["other"]
    assert plan.locate("work").container.kind == "fallback"


def test_a_fallback_is_tried_once():
    """C-01, requirements §2.5: also one that has a fallback; not what is in a container."""
    loop = Step.loop_until("l", OTHER, until)
    chain = compiled(WORK.fallback(OTHER.fallback(OTHER))).nodes[0].bodies["fallback"][0]
    inside = compiled(WORK.fallback(loop)).nodes[0].bodies["fallback"][0].bodies["body"][0]
    assert compiled(BOTH).nodes[0].bodies["primary"][0].max_attempts == 2
    assert [body[0].max_attempts for body in chain.bodies.values()] == [1, 1]
    assert inside.max_attempts == 6


def test_only_a_step_that_has_a_fallback_has_another_fingerprint():
    kept = Step("work", echo, config=StepConfig(preserve_fallback_diagnostics=True))
    assert compiled(kept).fingerprint == compiled(WORK).fingerprint
    assert len({each.fingerprint for each in map(compiled, (WORK, BOTH, kept.fallback(OTHER)))}) == 3


def test_containers_take_one_in_their_bodies_and_of_their_own():
    loop = Step.loop_until("l", BOTH, until).fallback(BOTH)
    paths = [path for path, _ in walk(Pipeline([loop]))]
    assert "l/primary/l/body/work/fallback/other" in paths
    assert "l/fallback/work/primary/work" in paths
    checks(loop)


@pytest.mark.parametrize(
    ("names", "said"),
    [("a", "a → a"), ("ab", "a → b → a"), ("abc", "a → b → c → a")],
)
def test_a_step_that_is_its_own_fallback_is_refused_with_the_circle(names, said):
    """M-406, U-30."""
    with pytest.raises(InfiniteFallbackError, match=said) as refused:
        checks(Step("before", echo), chained(*names))
    assert refused.value.error_code == "INFINITE_FALLBACK"


def test_a_circle_through_containers_is_refused_too():
    steps = [WORK]
    pipeline = Pipeline(steps, name="orders")
    steps.append(Step("s", echo, fallback_step=Step.loop_until("l", pipeline, until)))
    with pytest.raises(InfiniteFallbackError, match="orders → s → orders"):
        check(pipeline, allowed=())


def test_a_circle_that_no_fallback_is_part_of_is_what_it_was():
    steps = [WORK]
    pipeline = Pipeline(steps, name="orders")
    steps.append(Step.loop_until("l", pipeline, until).fallback(OTHER))
    with pytest.raises(PipelineError, match="its body contains itself"):
        check(pipeline, allowed=())


def test_a_fallback_that_contains_itself_is_no_endless_fallback():
    branches = {"a": WORK}
    branches["b"] = step = Step.parallel("p", branches)
    with pytest.raises(PipelineError, match="contains itself: work → work"):
        checks(WORK.fallback(step))


@pytest.mark.parametrize("ask", [compile_plan, lambda pipeline: list(walk(pipeline))])
def test_what_has_no_end_is_neither_compiled_nor_walked(ask):
    """A worker may hold other code than was checked."""
    with pytest.raises(FlujoError, match="is inside more than 20 containers"):
        ask(Pipeline([chained("a", "b")]))


@pytest.mark.parametrize("other", [Pipeline([OTHER]), "other", echo])
def test_a_fallback_is_a_step(other):
    with pytest.raises(
        PipelineError, match=f"step 'work': fallback_step must be a Step, got a {type(other).__name__}"
    ) as said:
        checks(WORK.fallback(other))
    assert "as_step" in str(said.value)


def test_what_is_wrong_in_a_fallback_is_found_with_its_place():
    with pytest.raises(MissingAgentError, match="step 'work/fallback/x': it has no agent"):
        checks(WORK.fallback(Step("x")))
    with pytest.raises(PipelineError, match=r"step 'work/primary/work': sink_to 'a\.\.b' is not a dotted path"):
        checks(Step("work", echo, sink_to="a..b").fallback(OTHER))


def test_fallbacks_stand_as_deep_as_containers():
    body = WORK
    for _ in range(20):
        body = Step("x", echo, fallback_step=body)
    checks(body)
    with pytest.raises(PipelineError, match="is inside more than 20 containers"):
        checks(Step("x", echo, fallback_step=body))


def history_of(*nodes):
    recorder = Recorder().play(*nodes)
    return read_result(
        run(), recorder.attempts, recorder.scopes, resolve=Resolver(["*"]), fetch=dict.fromkeys
    ).step_history


def test_a_box_that_failed_is_not_told_as_the_step_that_succeeded_in_it():
    box = C("x", "fallback", [[S("x")]], names=("primary",))
    [alone] = history_of(box)
    recorder = Recorder().play(box)
    scopes = [_failed(each) if each.address == "x" else each for each in recorder.scopes]
    [failed] = read_result(run(), recorder.attempts, scopes, resolve=Resolver(["*"]), fetch=dict.fromkeys).step_history
    assert (alone.success, alone.step_history) == (True, [])
    assert (failed.success, [each.success for each in failed.step_history]) == (False, [True])


def _failed(scope):
    return type(scope)(**{name: getattr(scope, name) for name in scope.__slots__} | {"status": "failed"})
