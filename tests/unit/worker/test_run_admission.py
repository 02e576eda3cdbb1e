"""Runs that wait for their admission, in the engine of one process: limits, windows, singletons, debouncing, throttles."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, ImportStep, Pipeline, RunLimit, Step, Throttle
from flujo_client.config.manager import Settings
from flujo_client.errors import AdmissionRefused, BlueprintError, ConfigurationError, PipelineError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.limits import AdmissionOptions, gates_of
from flujo_client.plan.plan_difference import differences
from flujo_worker.testing import LocalEngine


class Account(BaseModel):
    account: str


def add(data):
    return f"{data}+"


PIPELINE = Pipeline([Step("a", add)], name="plus")


def start_times(engine, *runs):
    """When each run began, in seconds from the first."""
    times = [engine.stores.reads.read_run(run).started_at for run in runs]
    return [(at - min(times)).total_seconds() for at in times]


def gates(value="x", settings=None, *, tenant="", **options):
    admission = Settings.model_validate({"admission": settings or {}}).admission
    return gates_of(
        admission, AdmissionOptions(**options), plan=compile_plan(PIPELINE), tenant=tenant, value=value, now=0.0
    )


def test_a_run_without_anything_of_this_has_no_gates():
    assert gates() == ()
    assert gates(settings={"tenant": {"acme": {"weight": 3}}}, tenant="other") == ()


def test_keys_are_templates_over_input_and_tenant():
    limits = [
        RunLimit("crm:{{ input.account }}", 5),
        RunLimit("all", 2, scope="pipeline"),
        RunLimit("x", 1, scope="tenant"),
    ]
    names = [gate.name for gate in gates(Account(account="a1"), run_limits=limits, tenant="acme")]
    assert names == ["limit 'crm:a1'", "limit 'all' of pipeline plus", "limit 'x' of tenant 'acme'"]
    [gate] = gates(singleton_key="nightly {{ tenant }}", tenant="acme")
    assert gate.name == "singleton 'nightly acme' of pipeline plus of tenant 'acme'"


def test_windows_are_multiplied_by_weights_and_replaced_by_caps():
    """A tenant's own entry counts, else the first pattern; runs without a tenant are a tenant."""
    settings = {
        "tenant_window": 10,
        "tenant": {"acme": {"weight": 2.5}, "free-*": {"max_running": 3}},
        "pipeline": {"plus": {"weight": 2, "max_running": 7}},
    }
    found = {tenant: gates(settings=settings, tenant=tenant) for tenant in ("acme", "free-1", "")}
    windows = {tenant: (each[-1].name, each[-1].most) for tenant, each in found.items()}
    assert windows == {
        "acme": ("tenant 'acme'", 25),
        "free-1": ("tenant 'free-1'", 3),
        "": ("runs without a tenant", 10),
    }
    own, window = found["acme"]
    assert (own.name, own.most, own.flow, own.weight) == ("pipeline plus", 7, "acme", 2.5)
    assert (window.flow, window.weight) == ("plus", 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RunLimit("x", 0), "`most` must be a whole number of at least 1, got '0'"),
        (lambda: RunLimit("", 1), "`key` must be a non-empty text"),
        (
            lambda: RunLimit("x", 1, on_full="wait"),
            "`on_full` must be one of 'queue', 'drop', 'cancel_oldest', got 'wait'",
        ),
        (lambda: RunLimit("x", 1, scope="run"), "`scope` must be one of 'global', 'pipeline', 'tenant'"),
        (lambda: Throttle(1, -1), "`period_s` must be seconds, more than 0"),
        (lambda: Throttle(1, 1, on_full="cancel_oldest"), "`on_full` must be one of 'queue', 'drop'"),
        (lambda: gates(debounce_s=-5), "`debounce_s` must be seconds, more than 0"),
        (lambda: gates(debounce_key="x"), "`debounce_key` needs `debounce_s`"),
        (lambda: gates(singleton_key="x", singleton="once"), "`singleton` must be one of 'return', 'queue', 'replace'"),
        (lambda: gates(singleton="queue"), "`singleton` needs `singleton_key`"),
        (lambda: gates(run_limits=RunLimit("x", 1)), "`run_limits` must be a list of RunLimits, got a RunLimit"),
        (lambda: gates(run_limits=["crm"]), r"run_limits\[0\] must be a RunLimit, got a str"),
        (lambda: gates(throttle=5), "`throttle` must be a Throttle, got a int"),
        (
            lambda: gates({"a": 1}, run_limits=[RunLimit("{{ input.b }}", 1)]),
            r"of `run_limits\[0\].key` does not fit this run: .*input.b",
        ),
        (lambda: gates(singleton_key="{{ context.b }}"), "of `singleton_key` does not fit this run"),
        (lambda: gates(singleton_key="{{ tenant }}"), "`singleton_key` must give 1 to 200 printable characters"),
        (lambda: gates(run_limits=[RunLimit("x", 1), RunLimit("x", 2)]), "limit 'x' is given twice"),
    ],
)
def test_what_is_no_limit_is_refused_as_it_is_given(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_runs_beyond_a_limit_follow_one_after_the_other(engine):
    limit = RunLimit("crm", 1)
    runs = [engine.enqueue(PIPELINE, str(number), run_limits=[limit]) for number in range(4)]
    assert len(engine.bus) == 1
    assert engine.stores.reads.read_run(runs[3]).waits_for == "limit 'crm': 1 of 1 places are taken"
    engine.drain()
    assert [engine.result(run).output for run in runs] == ["0+", "1+", "2+", "3+"]


LIMITS = [RunLimit("crm:{{ input.account }}", 1), RunLimit("all", 2, scope="pipeline", on_full="drop")]
BLUEPRINT = """
run_limits:
  - {key: "crm:{{ input.account }}", most: 1}
  - {key: all, most: 2, scope: pipeline, on_full: drop}
steps:
  - {name: a, uses: "builtins:len"}
"""


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline([Step("a", len)], run_limits=LIMITS),
        Pipeline([Step("a", len)], run_limits=LIMITS[:1]) >> Pipeline([Step("b", add)], run_limits=LIMITS[1:]),
        Pipeline.from_yaml_text(BLUEPRINT, allowed=["*"]),
        Pipeline.from_yaml_text(Pipeline.from_yaml_text(BLUEPRINT, allowed=["*"]).to_yaml(), allowed=["*"]),
    ],
    ids=["in Python", "of two", "in a blueprint", "written again"],
)
def test_all_runs_of_a_pipeline_pass_its_limits(engine, pipeline):
    """SYS-19, U-13: whoever enqueues them, beside their own limits."""
    assert list(pipeline.run_limits) == LIMITS
    first, second = (engine.enqueue(pipeline, {"account": "a"}, run_limits=[RunLimit("own", 9)]) for _ in range(2))
    assert engine.stores.reads.read_run(first).waits_for is None
    assert engine.stores.reads.read_run(second).waits_for == "limit 'crm:a': 1 of 1 places are taken"
    with pytest.raises(AdmissionRefused, match="limit 'all' of pipeline"):
        engine.enqueue(pipeline, {"account": "b"})
    engine.drain()
    assert {engine.stores.reads.read_run(run).status for run in (first, second)} == {"succeeded"}


def test_limits_of_a_pipeline_are_part_of_its_plan():
    """Also a client without its code finds them there."""
    plan = compile_plan(Pipeline([Step("a", len)], run_limits=LIMITS))
    assert plan.run_limits is not None
    assert [RunLimit(**each) for each in plan.run_limits] == LIMITS
    assert "run_limits" not in compile_plan(PIPELINE).to_tree()


def test_runs_carry_on_when_only_a_limit_of_their_pipeline_changed(engine):
    """SYS-19: and go by the limits that they were enqueued with."""
    steps = [HumanInTheLoopStep("ask", message_for_user="May it?"), Step("a", add)]
    narrow, wide = (Pipeline(steps, name="asks", run_limits=[RunLimit("crm", most)]) for most in (1, 2))
    first, second = (engine.enqueue(narrow, "x") for _ in range(2))
    engine.drain()
    engine.deploy(narrow, wide)
    [changed] = differences(compile_plan(narrow), compile_plan(wide))
    assert (changed.aspect, changed.effect) == ("run_limits", "option")
    third = engine.enqueue(wide, "x")
    assert engine.stores.reads.read_run(second).waits_for == "limit 'crm': 1 of 1 places are taken"
    for run in (first, second, third):
        assert engine.answer(run, "yes").output == "yes+"


def test_what_is_no_limit_of_a_pipeline_is_refused_with_its_place():
    with pytest.raises(PipelineError, match=r"run_limits\[0\] must be a RunLimit, got"):
        Pipeline([Step("a", len)], run_limits=["crm"])
    with pytest.raises(BlueprintError, match="context"):
        Pipeline.from_yaml_text(BLUEPRINT.replace("input.account", "context.x"), allowed=["*"])


def test_a_child_run_does_not_wait_for_the_place_of_its_parent(engine):
    """The parent waits for it and holds the place."""
    child = Pipeline([Step("b", add)], name="child")
    parent = Pipeline([ImportStep("import", pipeline=child, own_run=True)], name="parent")
    runs = [engine.enqueue(parent, "x", run_limits=[RunLimit("crm", 1)]) for _ in range(2)]
    engine.drain()
    assert [engine.result(run).output for run in runs] == ["x+", "x+"]
    assert len(engine.children(runs[0])) == 1


def test_a_run_that_waits_for_a_person_holds_its_limit_and_not_its_window(engine):
    asks = Pipeline([HumanInTheLoopStep("ask", message_for_user="May it?"), Step("a", add)], name="asks")
    limit = RunLimit("crm", 1)
    first, second = (engine.enqueue(asks, "x", run_limits=[limit]) for _ in range(2))
    engine.drain()
    assert [engine.stores.reads.read_run(run).status for run in (first, second)] == ["paused", "queued"]
    engine.answer(first, "yes")
    assert engine.stores.reads.read_run(second).status == "paused"
    with LocalEngine(Settings.model_validate({"admission": {"tenant_window": 1}})) as windowed:
        runs = [windowed.enqueue(asks, "x") for _ in range(3)]
        windowed.drain()
        assert {windowed.stores.reads.read_run(run).status for run in runs} == {"paused"}


def test_the_last_of_many_inputs_counts(engine):
    runs = [engine.enqueue(PIPELINE, str(number), debounce_s=5.0) for number in range(3)]
    engine.drain()
    assert [engine.stores.reads.read_run(run).status for run in runs] == ["cancelled", "cancelled", "succeeded"]
    assert engine.stores.reads.read_run(runs[0]).reason == f"replaced by run {runs[1]} (debounce '' of pipeline plus)"
    assert engine.result(runs[2]).output == "2+"


def test_a_throttle_spreads_the_beginnings(engine):
    runs = [engine.enqueue(PIPELINE, "x", throttle=Throttle(2, 60.0)) for _ in range(5)]
    engine.drain()
    assert start_times(engine, *runs) == [0, 0, 60, 60, 120]


def test_a_singleton_is_returned_queued_or_replaced(engine):
    first = engine.enqueue(PIPELINE, "1", singleton_key="k")
    assert engine.enqueue(PIPELINE, "2", singleton_key="k") == first
    queued = engine.enqueue(PIPELINE, "3", singleton_key="k", singleton="queue")
    replacing = engine.enqueue(PIPELINE, "4", singleton_key="k", singleton="replace")
    other = engine.enqueue(PIPELINE, "5", singleton_key="k", tenant="acme")
    engine.drain()
    statuses = [engine.stores.reads.read_run(run).status for run in (first, queued, replacing, other)]
    assert statuses == ["cancelled", "cancelled", "succeeded", "succeeded"]


def test_a_limit_that_refuses_names_itself(engine):
    limit = RunLimit("crm", 1, on_full="drop")
    engine.enqueue(PIPELINE, "1", run_limits=[limit])
    with pytest.raises(AdmissionRefused, match="limit 'crm' is reached"):
        engine.enqueue(PIPELINE, "2", run_limits=[limit])
    engine.drain()
    assert engine.run(PIPELINE, "3", run_limits=[limit]).output == "3+"


def test_a_retry_waits_as_its_run_did(engine):
    limit = RunLimit("crm", 1)
    first = engine.enqueue(PIPELINE, "1", run_limits=[limit])
    engine.drain()
    engine.enqueue(PIPELINE, "2", run_limits=[limit])
    retried = engine.fork(first, "a")
    assert engine.stores.reads.read_run(retried).waits_for is not None
    engine.drain()
    assert engine.result(retried).output == "1+"
