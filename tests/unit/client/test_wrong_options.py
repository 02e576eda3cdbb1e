"""Options that a step does not have, and a coroutine in place of a function, are answered with what to write."""

import pytest

from flujo_client import CacheStep, LoopStep, ParallelStep, Pipeline, Step, step
from flujo_client.errors import PipelineError


def price(data):
    return data


async def fetch(data):
    return data


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Step("a", price, retries=3), "step 'a': Step has no option 'retries': write config=StepConfig(max_retries=…)"),
        (lambda: Step("a", price, max_retries=3), "step 'a': Step has no option 'max_retries': write config=StepConfig(max_retries=…)"),
        (lambda: Step("a", price, timeout=3), "step 'a': Step has no option 'timeout': write config=StepConfig(timeout_s=…)"),
        (lambda: Step(name="a", agent=price, validator=3), "Step has no option 'validator': write validators=…"),
        (lambda: Step("a", price, zzzz=3), "step 'a': Step has no option 'zzzz'"),
        (lambda: step(retries=3)(price), "@step has no option 'retries': write @step(max_retries=…)"),
        (lambda: step(zzzz=3)(price), "@step has no option 'zzzz'"),
        (lambda: LoopStep("a", body=Step("b", price), max_loop=3), "step 'a': LoopStep has no option 'max_loop': write max_loops=…"),
        (lambda: ParallelStep("a", branches={}, reducer="keys"), "step 'a': ParallelStep has no option 'reducer': write reduce=…"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_answered_with_the_nearest(make, told):
    with pytest.raises(TypeError) as raised:
        make()
    assert str(raised.value) == told


def test_aliases_and_decorator_options_are_known():
    step(max_retries=3, timeout_s=1, sink_to="x", retry_bugs=True)(price)
    assert LoopStep("a", body=Step("b", price), max_iterations=3, exit_condition_callable=bool).max_loops == 3
    CacheStep("a", wrapped_step=Step("b", price))


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_not_a_function():
    with pytest.raises(PipelineError, match="step 'a' was given a coroutine, the result of calling fetch") as raised:
        Pipeline([Step("a", fetch("ada"))])
    assert raised.value.suggestion == 'give it the function itself: Step("a", fetch)'
