"""What a step sets in its thread or task does not reach the next step, nor the run beside it (issue 34, line 8)."""

import asyncio
import contextvars
import decimal
from decimal import Decimal

import pytest

from flujo_client import AgentProcessors, Pipeline, Step
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.testing import LocalEngine

SEEN: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)
FRESH = ["0.3333333333333333333333333333", 0]


def found():
    return [str(Decimal(1) / Decimal(3)), SEEN.get()]


def change():
    decimal.getcontext().prec = 5
    decimal.getcontext().traps[decimal.Inexact] = False
    SEEN.set(SEEN.get() + 1)
    return found()


def change_in_thread(_):
    return change()


async def change_on_loop(_):
    return change()


def look_in_thread(before):
    return [before, found()]


async def look_on_loop(before):
    return [before, found()]


@pytest.fixture
def engine():
    """The thread that begins the work has a decimal context of its own, as one that has calculated with decimals has."""
    with decimal.localcontext() as context, LocalEngine() as engine:
        yield engine
        assert context.prec == decimal.DefaultContext.prec


@pytest.mark.parametrize("look", [look_in_thread, look_on_loop])
@pytest.mark.parametrize("changing", [change_in_thread, change_on_loop])
def test_the_next_step_and_the_next_run_begin_afresh(engine, changing, look):
    pipeline = Pipeline([Step("change", changing), Step("look", look)])
    assert engine.run(pipeline, "go").output == [["0.33333", 1], FRESH]
    assert engine.run(Pipeline([Step("look", look)]), "go").output == ["go", FRESH]


def test_other_code_of_a_step_neither(engine):
    """Output processors, validators and conditions run in threads and on the loop too."""
    told = []

    def process(data, context=None):
        told.append(found())
        return data

    async def process_on_loop(data, context=None):
        return process(data)

    processors = AgentProcessors(output_processors=[process, change_and_return])
    after = AgentProcessors(prompt_processors=[process, process_on_loop])
    steps = [Step("one", look_in_thread, processors=processors), Step("two", look_in_thread, processors=after)]
    assert engine.run(Pipeline(steps), "go").success
    assert told == [FRESH] * 3


def change_and_return(data, context=None):
    change()
    return data


def test_calls_beside_each_other_on_the_loop():
    loop = Loop()
    both = asyncio.Barrier(2)

    async def divides(digits):
        decimal.getcontext().prec = digits
        await both.wait()
        return found()[0]

    try:
        calls = [loop.submit(divides(digits)) for digits in (5, 7)]
        assert [each.result(timeout=60) for each in calls] == ["0.33333", "0.3333333"]
    finally:
        loop.close()


def test_a_thread_that_is_used_again_remembers_nothing():
    threads = Threads("agent")
    try:
        threads.submit(change).result(timeout=60)
        assert threads.submit(found).result(timeout=60) == FRESH
    finally:
        threads.shutdown()
