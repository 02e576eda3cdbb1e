"""A forgotten `await` is said in words, wherever it is noticed."""

import asyncio
import gc

import pytest

from flujo_client import Step
from flujo_worker import LocalEngine

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


async def fetch(data):
    await asyncio.sleep(0)
    return {"total": 7, "for": data}


def returned(data):
    """A sync function may hand on what another one returns."""
    return fetch(data)


async def returned_from_async(data):
    return fetch(data)


async def returned_inside(data):
    return [{"found": fetch(data)}]


async def read_attribute(data):
    return fetch(data).total


async def read_item(data):
    return fetch(data)["total"]


async def looped_over(data):
    return list(fetch(data))


@pytest.fixture
def run():
    with LocalEngine() as engine:
        yield lambda function: engine.run(Step("work", function) >> Step("next", lambda data: data), "a")
    gc.collect()  # its coroutines: their warnings are expected in this module only


def test_a_coroutine_that_a_sync_function_returns_is_awaited(run):
    assert run(returned).output == {"total": 7, "for": "a"}


@pytest.mark.parametrize("function", [returned_from_async, returned_inside])
def test_a_coroutine_in_the_output_is_named(run, function):
    error = run(function).error
    assert "a coroutine cannot be serialized" in error.message
    assert error.suggestion == "write `await` in front of the call that returned it"


@pytest.mark.parametrize("function", [read_attribute, read_item, looped_over])
def test_a_coroutine_that_is_used_as_its_result_is_named(run, function):
    error = run(function).error
    assert "'coroutine' object" in error.message
    assert error.suggestion == "write `await` in front of the call that returned the coroutine"
