"""The plan of whatever nests: its fingerprint, its journey through JSON, its paths and addresses."""

import json
import random
from dataclasses import replace

import pytest
import test_pipeline_plan as plain
from hypothesis import given
from hypothesis import strategies as st

from flujo_client import (
    ImportStep,
    LoopStep,
    MapStep,
    ParallelStep,
    Pipeline,
    StateMachineStep,
    Step,
    StepConfig,
    Transition,
)
from flujo_client.address import ROOT
from flujo_client.config.models import SizeLimits
from flujo_client.contract.envelope import CONTROL_QUEUE, Envelope
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import walk
from flujo_client.pipeline.submit import Order, new_run
from flujo_client.plan.plan import Plan
from flujo_client.serial import dumps, loads
from tests.support.builders import echo, enqueued

WORK = Step("work", echo)


def one(*_):
    return True


def two(*_):
    return True


names = st.sampled_from(["a", "body", "b c", "ü", "1"])


def bodies_of(inner):
    return inner | st.lists(inner, min_size=1, max_size=3, unique_by=lambda step: step.name).map(Pipeline)


def containers(inner):
    body = bodies_of(inner)
    branches = st.dictionaries(names, body, max_size=3)
    some = st.dictionaries(names, body, min_size=1, max_size=3)
    function = st.sampled_from([one, two])
    return st.one_of(
        st.builds(Step.loop_until, names, body, function, st.integers(1, 99)),
        st.builds(lambda name, body, k: MapStep(name, body=body, iterable_input="x", max_concurrency=k), names, body, st.none() | st.just(2)),
        st.builds(lambda name, each, reduce: ParallelStep(name, branches=each, reduce=reduce), names, branches, st.none() | function),
        st.builds(lambda name, each: Step.dynamic_parallel_branch(name, echo, each), names, branches),
        st.builds(Step.branch_on, names, function, some, st.none() | body),
        st.builds(lambda name, body, default: ImportStep(name, pipeline=body, default=default), names, body, st.none() | st.text(max_size=3)),
        st.builds(machine, names, some, function),
        st.builds(Step.refine_until, names, body, body),
    )  # fmt: skip


def machine(name, states, when):
    ways = [Transition(state, "done", when=when) for state in states]
    return StateMachineStep(name, states=states, start_state=next(iter(states)), end_states=["done"], transitions=ways)


anything = st.recursive(names.map(lambda name: Step(name, echo)), containers, max_leaves=12)
pipelines = bodies_of(anything).map(lambda body: body if isinstance(body, Pipeline) else Pipeline([body]))


def shuffled(tree, dice):
    """A tree as jsonb gives it back: the order of keys is lost."""
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda _: dice.random())
        return {key: shuffled(tree[key], dice) for key in keys}
    return [shuffled(each, dice) for each in tree] if isinstance(tree, list) else tree


@given(pipelines)
def test_whatever_nests_passes_the_check(pipeline):
    """M-402: any container in any other."""
    check(pipeline, allowed=())


@given(pipelines, st.integers())
def test_a_plan_survives_its_journey_even_where_the_order_of_keys_is_lost(pipeline, seed):
    plan = compile_plan(pipeline)
    again = Plan.from_tree(shuffled(json.loads(dumps(plan.to_tree())), random.Random(seed)))
    assert again == Plan.from_tree(loads(dumps(plan.to_tree()))) == plan
    assert [list(node.bodies) for node in every(again.nodes)] == [list(node.bodies) for node in every(plan.nodes)]


def every(nodes):
    for node in nodes:
        yield node
        for body in node.bodies.values():
            yield from every(body)


@given(pipelines)
def test_walking_gives_every_node_its_live_step(pipeline):
    nodes = list(every(compile_plan(pipeline).nodes))
    live = list(walk(pipeline))
    assert [(node.path, node.name, node.kind) for node in nodes] == [
        (path, each.name, each.kind) for path, each in live
    ]
    assert len({path for path, _ in live}) == len(live)


@given(pipelines, st.integers(1, 999))
def test_the_address_of_a_live_scope_leads_to_its_steps(pipeline, number):
    plan, live = compile_plan(pipeline), dict(walk(pipeline))
    for path, step in live.items():
        address = sequence_of(path, live, number)
        spot = plan.locate(address)
        assert path in [node.path for node in spot.nodes]
        if step.bodies():
            box = f"{address}/{step.name}" if address else step.name
            inside = plan.locate(box)
            assert (inside.container.path, inside.nodes, inside.above) == (path, None, address)


def sequence_of(path, live, number):
    """The address of the scope that a step at this path runs in, everything at its `number`-th time."""
    parts, address, above = path.split("/"), [], []
    for name, key in zip(parts[:-1:2], parts[1:-1:2], strict=True):
        kind = live["/".join([*above, name])].kind
        address += {
            "loop": [f"{name}#{number}"],
            "map": [f"{name}#{number}"],
            "machine": [f"{name}#{number}", key],
        }.get(kind, [name, key])
        above += [name, key]
    return "/".join(address)


@pytest.mark.parametrize("address", ["x", "p/x", "p/a/x", "l#1/x", "w#1/body/x"])
def test_another_address_is_refused(address):
    plan = compile_plan(
        Pipeline([Step.parallel("p", {"a": WORK}), LoopStep("l", body=WORK, exit_condition_callable=one)])
    )
    with pytest.raises(KeyError):
        plan.locate(address)


def test_a_plan_of_plain_steps_keeps_its_fingerprint(monkeypatch):
    """Runs that began under an older release are carried on: this digest is of the release without containers."""
    monkeypatch.setattr(plain.echo, "__module__", "builders")  # the module that it was in then
    agent = plain.Agent(model="m", output_type=int | None, system_prompt="p")
    options = {"updates_context": True, "sink_to": "x.y", "queue": "gpu", "meta": {"k": [1, None]}}
    steps = [plain.BASE, Step("z", agent, **options)]
    plan = compile_plan(Pipeline(steps, name="pinned", version="3", context_model=plain.Book))
    assert plan.fingerprint == "9a082d409f3bcd5be4d8588c4052a1dadf80fdd2298d2e3230bdf3979b296052"


class Counted:
    """An agent that counts how often it is described."""

    times = 0

    @property
    def __flujo_identity__(self):
        type(self).times += 1
        return {"ref": "shop:price"}


def test_a_step_in_a_thousand_branches_is_described_once_with_the_fingerprint_of_a_thousand_steps():
    shared = Step("price", Counted())
    plan = compile_plan(Pipeline([Step.parallel("fan", {f"b{number}": shared for number in range(1000)})]))
    assert Counted.times == 1
    apart = Step.parallel("fan", {f"b{number}": Step("price", Counted()) for number in range(1000)})
    assert compile_plan(Pipeline([apart])).fingerprint == plan.fingerprint
    assert (
        plan.fingerprint == "c1e4eef7a344deb95722aff01a016f9cc4c50e9a7dcd924ead435f10dcac8868"
    )  # of the release that described each place
    assert {node.path for each in plan.nodes[0].bodies.values() for node in each} == {
        f"fan/b{number}/price" for number in range(1000)
    }


def test_a_step_that_is_a_fallback_too_is_described_for_both_places():
    work = Step("work", echo, config=StepConfig(max_retries=2))
    plan = compile_plan(Pipeline([Step("main", echo, config=StepConfig(max_retries=2)).fallback(work), work]))
    [main, again] = plan.nodes
    assert [node.max_attempts for body in main.bodies.values() for node in body] == [3, 1]
    assert again.max_attempts == 3


def fingerprint(step):
    return compile_plan(Pipeline([step])).fingerprint


LOOP = LoopStep("x", body=WORK, exit_condition_callable=one)
MAP = Step.map_over("x", WORK, iterable_input="items")
PARALLEL = Step.parallel("x", {"a": WORK, "b": WORK})
ROUTER = Step.dynamic_parallel_branch("x", echo, {"a": WORK})
CHOICE = Step.branch_on("x", one, {"a": WORK})
IMPORT = ImportStep("x", pipeline=WORK)
MACHINE = machine("x", {"a": WORK, "b": WORK}, one)

CHANGES = [
    (LOOP, {"loop_body_pipeline": Step("other", echo)}),
    (LOOP, {"loop_body_pipeline": Step("work", one)}),
    (LOOP, {"exit_condition_callable": two}),
    (LOOP, {"max_loops": 6}),
    (LOOP, {"fails_at_max": True}),
    (LOOP, {"initial_input_to_loop_body_mapper": one}),
    (LOOP, {"iteration_input_mapper": one}),
    (LOOP, {"loop_output_mapper": one}),
    (LOOP, {"meta": {"k": 1}}),
    (MAP, {"iterable_input": "others"}),
    (MAP, {"parallel": True}),
    (PARALLEL, {"branches": {"b": WORK, "a": WORK}}),
    (PARALLEL, {"merge_strategy": "keep_first"}),
    (PARALLEL, {"merge_strategy": one}),
    (PARALLEL, {"on_branch_failure": "ignore"}),
    (PARALLEL, {"context_include_keys": []}),
    (PARALLEL, {"max_concurrency": 2}),
    (PARALLEL, {"field_mapping": {"a": ["x"]}}),
    (PARALLEL, {"ignore_branch_names": True}),
    (PARALLEL, {"reduce": "first"}),
    (PARALLEL, {"reduce": one}),
    (ROUTER, {"router_agent": one}),
    (ROUTER, {"queue": "gpu"}),
    (CHOICE, {"condition_callable": two}),
    (CHOICE, {"branch_input_mapper": one}),
    (CHOICE, {"branch_output_mapper": one}),
    (CHOICE, {"default_branch_pipeline": WORK}),
    (IMPORT, {"inherit_context": True}),
    (IMPORT, {"input_to": "both"}),
    (IMPORT, {"input_scratchpad_key": "k"}),
    (IMPORT, {"outputs": []}),
    (IMPORT, {"inherit_conversation": False}),
    (IMPORT, {"propagate_hitl": False}),
    (IMPORT, {"on_failure": "skip"}),
    (IMPORT, {"default": 1}),
    (IMPORT, {"keeps_input": True}),
    (IMPORT, {"pipeline": Pipeline([WORK], context_model=plain.Book)}),
    (MACHINE, {"start_state": "b"}),
    (MACHINE, {"end_states": ["a", "done"]}),
    (MACHINE, {"transitions": MACHINE.transitions[:1]}),
    (MACHINE, {"transitions": [replace(MACHINE.transitions[0], when=two), MACHINE.transitions[1]]}),
    (MACHINE, {"max_visits": 3}),
]


@pytest.mark.parametrize(
    ("step", "change"), CHANGES, ids=[f"{s.kind}-{n}-{next(iter(c))}" for n, (s, c) in enumerate(CHANGES)]
)
def test_whatever_matters_about_a_container_changes_the_fingerprint(step, change):
    assert fingerprint(replace(step, **change)) != fingerprint(step)


def test_what_makes_no_difference_makes_no_other_fingerprint():
    fields = {"context_include_keys": ["x", "y"]}
    assert fingerprint(replace(PARALLEL, **fields)) == fingerprint(replace(PARALLEL, context_include_keys={"y", "x"}))
    assert fingerprint(replace(PARALLEL, merge_strategy="context_update")) == fingerprint(PARALLEL)


def test_the_functions_of_a_refinement_and_the_names_of_a_gathering_count():
    mapped = [Step.refine_until("r", WORK, WORK, feedback_mapper=each) for each in (None, one, two)]
    gathered = [Step.gather("g", each) for each in (["a"], ["b"])]
    assert len({fingerprint(step) for step in (*mapped, *gathered)}) == 5


@pytest.mark.parametrize("step", [LOOP, MAP, PARALLEL, CHOICE, IMPORT, MACHINE], ids=lambda step: step.kind)
def test_a_pipeline_that_begins_with_a_container_begins_with_a_start(step):
    """Design §4: the coordinator's queue opens what has no attempt of its own."""
    first = enqueued(Pipeline([step]), queue="mine").first
    assert (first.kind, first.address, first.step, first.queue) == ("start", ROOT, "x", CONTROL_QUEUE)
    assert first.key == f"{first.ticket.run}::x:start"
    assert Envelope.from_wire(loads(dumps(first.to_wire()))) == first


def test_the_control_queue_is_the_one_that_is_set():
    plan = compile_plan(Pipeline([PARALLEL]))
    new = new_run(plan, "m:p", 1, Order("run_1"), size=SizeLimits(), allowed=(), control_queue="ours")
    assert new.first.queue == "ours"


def test_a_router_begins_with_an_attempt_at_its_agent():
    first = enqueued(Pipeline([replace(ROUTER, queue="gpu")])).first
    assert (first.kind, first.step, first.number, first.queue) == ("step", "x", 1, "gpu")
