"""Cached steps as they are written: what they are called, what they are in a plan, what is refused (SYS-31)."""

from dataclasses import replace
from math import inf, nan
from typing import Any
from unittest.mock import MagicMock

import pytest

from flujo_client import CacheStep, InMemoryCache, LoopStep, Pipeline, PipelineContext, Step
from flujo_client.errors import PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.plan.plan import Node
from tests.support.builders import echo

WORK = Step("work", echo)
BACKEND = InMemoryCache()
TEXT = "text"


def findings(step: Any, **rest: Any) -> tuple[str, ...]:
    with pytest.raises(PipelineError) as caught:
        check(Pipeline([step]), allowed=rest.pop("allowed", ("*",)), **rest)
    return caught.value.findings


def node(step: Step) -> Node:
    return compile_plan(Pipeline([step], name="p")).nodes[0]


def test_a_cached_step_is_called_like_the_one_it_wraps():
    """Requirements §2.3: `Step.cached(step, cache_backend)` makes a `CacheStep`."""
    made = Step.cached(WORK, BACKEND, ttl_s=5)
    assert isinstance(made, CacheStep)
    assert (made.name, made.wrapped_step, made.cache_backend, made.ttl_s) == ("work", WORK, BACKEND, 5)
    assert (CacheStep("mine", wrapped_step=WORK).name, Step.cached(WORK).ttl_s) == ("mine", 3600)
    assert replace(made, ttl_s=7).name == "work"


def test_it_is_a_container_of_the_step_in_the_plan():
    made = node(Step.cached(WORK))
    assert (made.kind, made.path, made.rules) == ("cache", "work", {"functions": [], "ttl_s": 3600.0})
    assert [each.path for each in made.bodies["body"]] == ["work/body/work"]
    assert (
        compile_plan(Pipeline([Step.cached(WORK.fallback(Step("b", echo)))])).nodes[0].bodies["body"][0].kind
        == "fallback"
    )


def test_time_and_backend_are_in_the_fingerprint():
    plans = [
        Step.cached(WORK),
        Step.cached(WORK, ttl_s=1),
        Step.cached(WORK, BACKEND),
        Step.cached(WORK, "shop:cache"),
        WORK,
    ]
    assert len({compile_plan(Pipeline([each], name="p")).fingerprint for each in plans}) == 5


@pytest.mark.parametrize("backend", [None, BACKEND, f"{__name__}:BACKEND"])
@pytest.mark.parametrize("ttl_s", [0, 0.5, 10**9])
def test_what_may_be_written_passes(backend, ttl_s):
    check(Pipeline([Step.cached(WORK, backend, ttl_s=ttl_s)]), allowed=("*",))


@pytest.mark.parametrize("ttl_s", [-1, inf, nan, True, "1", None])
def test_a_time_is_a_number_from_0(ttl_s):
    assert findings(Step.cached(WORK, ttl_s=ttl_s)) == (
        f"step 'work': ttl_s must be a number of seconds from 0, got {ttl_s}",
    )


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (MagicMock(), "its cache_backend is a mock, which no worker can rebuild"),
        (InMemoryCache, "its cache_backend is the class InMemoryCache; give an instance"),
        (object(), "its cache_backend, a object, has no get, set, delete"),
        ("nothing", "'nothing' is not a reference to a cache backend"),
        ("nowhere_at_all:cache", "cache backend 'nowhere_at_all:cache' not found: no module named 'nowhere_at_all'"),
        (f"{__name__}:WORK", "its cache_backend, a Step, has no get, set, delete"),
        (f"{__name__}:TEXT", f"cache backend '{__name__}:TEXT' is a text"),
    ],
)
def test_a_backend_keeps_gives_and_forgets(backend, said):
    assert findings(Step.cached(WORK, backend)) == (f"step 'work': {said}",)


def test_a_backend_stands_under_an_allowed_import():
    (found,) = findings(Step.cached(Step("work", echo), "shop:cache"), allowed=("tests.support.builders",))
    assert "cache backend 'shop:cache' is outside the allowed imports" in found


def test_what_is_wrapped_is_a_step():
    wrapped: Any = Pipeline([WORK])
    assert findings(CacheStep("c", wrapped_step=wrapped)) == (
        "step 'c': wrapped_step must be a Step, got a Pipeline; turn a pipeline into a step with as_step(name)",
    )
    assert "must be a Pipeline or a Step" in " ".join(findings(CacheStep("c", wrapped_step=None)))  # type: ignore[arg-type]


def test_no_answer_of_a_person_is_kept():
    """However deep the question stands; an answer counts for one run."""
    asks = Step.human_in_the_loop("ask", "May I?")
    said = "it asks a person and is inside a cached step; an answer is valid for one run only, so move it outside"
    assert findings(Step.cached(asks)) == (f"step 'ask/body/ask': {said}",)
    deep = Pipeline(
        [LoopStep("l", body=asks, exit_condition_callable=lambda output, context: True)], context_model=PipelineContext
    )
    assert findings(Step.cached(deep.as_step("n", inherit_context=False))) == (
        f"step 'n/body/n/body/l/body/ask': {said}",
    )
    check(Pipeline([asks, Step.cached(WORK)]), allowed=("*",))
