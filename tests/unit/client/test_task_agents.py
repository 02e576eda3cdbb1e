"""Celery tasks as agents, as the client sees them: their arguments, their place in the plan, and what is refused before anything is sent."""

import asyncio
import subprocess
import sys

import pytest
from celery import Celery, Task, chain

from flujo_client import Limit, Pipeline, Step, StepConfig
from flujo_client.errors import NonRetryableError, PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan

app = Celery("shop", set_as_current=False)


@app.task(name="shop.resize")
def resize(path, width=100):
    return path, width


@app.task(name="shop.total")
def total(price, count):
    return price * count


@app.task(name="shop.slow", time_limit=7, rate_limit="10/m")
def slow(given):
    return given


@app.task(name="shop.pickled", serializer="pickle")
def pickled(given):
    return given


@app.task(name="shop.declared", serializer="pickle")
def declared(given) -> list[int]:
    return given


@app.task(name="shop.unstorable")
def unstorable(given) -> Celery:
    return given


@app.task(name="shop.lazy")
def lazy(given):
    yield given


@app.task(name="shop.later")
async def later(given):
    return given


class Awaiting(Task):
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


@app.task(name="shop.awaited", base=Awaiting)
async def awaited(given):
    return given


def findings(step):
    with pytest.raises(PipelineError) as refused:
        check(Pipeline([step]), allowed=())
    return refused.value.findings


@pytest.mark.parametrize(
    ("step", "finding"),
    [
        (Step.of(slow), "rate_limit='10/m', which each worker would count alone: give the step `limit=Limit(…)`"),
        (Step.of(pickled), "has the serializer pickle, by which it may return what cannot be stored: annotate"),
        (Step.of(unstorable), "returns Celery, which cannot be stored"),
        (Step.of(lazy), "is a generator, whose values cannot be stored: return a list"),
        (Step.of(later), "is async, which Celery does not run: give the step an async function"),
        (Step.of(total), "missing a required argument: 'count'; pass the others as total.s(…), or spread a mapping"),
        (Step.of(total.s(1, 2)), "cannot be called with the output of the step before: too many positional arguments"),
        (Step.of(resize.s().set(countdown=5)), "is given as a signature with countdown"),
        (Step("both", chain(resize.s(), resize.s())), "is given as a signature with chain"),
    ],
    ids=lambda each: each.name if isinstance(each, Step) else "",
)
def test_what_a_step_cannot_keep_is_refused_by_name(step, finding):
    [found] = findings(step)
    assert finding in found


@pytest.mark.parametrize(
    "step",
    [
        Step.of(slow, limit=Limit("shop", 2)),
        Step.of(declared),
        Step.of(awaited),
        Step.of(total, spread=True),
        Step.of(total.s(2)),
        Step.of(total.s(count=2)),
        Step.of(total.si(1, 2)),
        Step("resize", resize),
        Step.from_callable(resize),
    ],
    ids=lambda step: step.name,
)
def test_each_way_out_is_one(step):
    check(Pipeline([step]), allowed=())


@pytest.mark.parametrize(
    ("step", "given", "called_with"),
    [
        (Step.of(resize), "a", (("a",), {})),
        (Step.of(resize.s(3)), "a", (("a", 3), {})),
        (Step.of(resize.s(width=3)), "a", (("a",), {"width": 3})),
        (Step.of(resize.si("b")), "a", (("b",), {})),
        (Step.of(total, spread=True), {"price": 1, "count": 2}, ((), {"price": 1, "count": 2})),
        (Step.of(total, spread=True), [1, 2], ((1, 2), {})),
        (Step.of(total.s(count=5), spread=True), {"price": 1}, ((), {"price": 1, "count": 5})),
    ],
)
def test_what_a_task_is_called_with(step, given, called_with):
    assert step.agent.arguments(given) == called_with


def test_only_a_mapping_or_a_list_can_be_spread():
    with pytest.raises(NonRetryableError, match=r"'shop\.total' are to be spread from its input, which is a str"):
        Step.of(total, spread=True).agent.arguments("two")


def test_a_step_is_named_after_its_tasks_function_and_tries_it_once():
    step = Step.of(slow)
    assert (step.name, step.config.max_retries, step.config.timeout_s) == ("slow", 0, 7.0)
    own = Step.of(slow, "mine", config=StepConfig(max_retries=4, timeout_s=60))
    assert (own.name, own.config.max_retries, own.config.timeout_s) == ("mine", 4, 60.0)


def test_a_task_can_be_called_alone():
    assert asyncio.run(Step.of(resize.s(width=7)).arun("a")) == ("a", 7)


def test_another_task_and_other_arguments_are_another_plan():
    steps = [Step("s", resize), Step("s", slow), Step("s", resize.s(3)), Step("s", resize.si("a"))]
    assert len({compile_plan(Pipeline([step])).fingerprint for step in steps}) == len(steps)
    assert (
        compile_plan(Pipeline([Step("s", resize)])).fingerprint
        == compile_plan(Pipeline([Step("s", resize)])).fingerprint
    )


@pytest.mark.processes
def test_pipelines_without_tasks_load_nothing_of_this():
    code = (
        "import sys; from flujo_client import Pipeline, Step; Pipeline([Step('s', str)]);"
        "assert not {'celery', 'flujo_client.pipeline.celery_task'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
