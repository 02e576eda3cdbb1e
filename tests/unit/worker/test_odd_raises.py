"""Exceptions that futures and coroutines do not carry as they do others: each is an ordinary failure of whoever raised it, at once."""

import asyncio

import pytest

from flujo_client import LoopStep, Pipeline, Step, StepConfig
from flujo_client.pipeline.step import AgentProcessors

ONCE = StepConfig(max_retries=0, timeout_s=20)
ODD = [StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError]
pytestmark = [
    pytest.mark.timeout(15),
    pytest.mark.parametrize("odd", ODD),
    pytest.mark.parametrize("is_sync", [True, False]),
]


def raising(odd, *, is_sync):
    def sync(*_, **__):
        raise odd("odd")

    async def not_sync(*_, **__):
        raise odd("odd")

    return sync if is_sync else not_sync


def echo(data):
    return data


def failure(engine, pipeline):
    result = engine.run(pipeline, "in")
    assert not result.success
    assert engine.run(Pipeline([Step("next", echo)]), "in").success
    return engine.history(result.run_id)[-1].fault, result


@pytest.mark.parametrize(
    ("where", "category"),
    [("agent", "agent"), ("validators", "validation"), ("plugins", "plugin"), ("processors", "agent")],
)
def test_in_a_step(engine, odd, is_sync, where, category):
    raises = raising(odd, is_sync=is_sync)
    judge = type("Judge", (), {"validate": staticmethod(raises)})()
    extra = {
        "agent": {},
        "validators": {"validators": [judge]},
        "plugins": {"plugins": [judge]},
        "processors": {"processors": AgentProcessors(prompt_processors=[raises])},
    }[where]
    step = Step("s", raises if where == "agent" else echo, config=ONCE, **extra)
    fault, _ = failure(engine, Pipeline([step]))
    assert fault.category == category
    assert odd.__name__ in fault.feedback


def test_in_a_condition(engine, odd, is_sync):
    loop = LoopStep(
        "loop", loop_body_pipeline=Pipeline([Step("x", echo)]), exit_condition_callable=raising(odd, is_sync=is_sync)
    )
    _, result = failure(engine, Pipeline([loop]))
    said = result.step_history[-1].feedback
    assert odd.__name__ in said or (odd is asyncio.CancelledError and "cancelled its own task" in said)


def test_in_a_hook(engine, odd, is_sync):
    result = engine.run(Pipeline([Step("s", echo)], hooks=[raising(odd, is_sync=is_sync)]), "in")
    assert result.success
    [*_, told] = [event.data for event in engine.story(result.run_id) if event.name == "hook.failed"]
    assert odd.__name__ in f"{told['error']} {told['message']}" or odd is asyncio.CancelledError


def test_in_a_resource(engine, odd, is_sync):
    fault, _ = failure(engine, Pipeline([Step("s", echo, config=ONCE)], resources=raising(odd, is_sync=is_sync)))
    assert fault.category == "system"
    assert odd.__name__ in fault.feedback
